"""What training costs in arithmetic. Comes in: a Model, lengths of sequences; goes out: floating-point operations.

The model's own: two for each multiplication with a weight, and causal attention; nothing that is computed again, no
padding, no optimizer. A backward pass costs twice its forward pass (Megatron-LM, arXiv:2104.04473, appendix).
"""

from collections.abc import Iterable

from ftppo.config_model import Model


def training_flops(model: Model, outputs: int, lengths: Iterable[int]) -> float:
    """Of a forward and a backward pass over sequences of `lengths`; `outputs` of the last layer: vocabulary or 1."""
    width = model.heads * model.head_size
    projections = model.hidden * (2 * width + 2 * model.kv_heads * model.head_size)
    weights = model.layers * (projections + 3 * model.hidden * model.ffn) + model.hidden * outputs
    forward = 0.0
    for length in lengths:
        pairs = length * (length + 1) / 2  # of a query and a key that it sees: once in the scores, once in the values
        forward += 2 * weights * length + 4 * model.layers * width * pairs
    return 3 * forward
