"""Log-probabilities and entropies from logits that are cut along the vocabulary (TP), without gathering them."""

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import reduce_from_tensor_model_parallel_region
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """logits [..., vocab / tp], targets [...] int64 -> (log-probability [...], entropy [...]), float32, differentiable.

    Of the distribution softmax(logits / temperature); temperature 0 counts as 1, as greedy drawing has no density.
    """
    scaled = logits.float() / temperature if temperature > 0 else logits.float()
    group = parallel_state.get_tensor_model_parallel_group()
    peak = scaled.detach().amax(-1)
    if group.size() > 1:
        torch.distributed.all_reduce(peak, op=torch.distributed.ReduceOp.MAX, group=group)
    shifted = scaled - peak.unsqueeze(-1)
    weights = shifted.exp()
    start = group.rank() * logits.shape[-1]
    local = (targets - start).clamp(0, logits.shape[-1] - 1)
    here = ((targets >= start) & (targets < start + logits.shape[-1])).float()
    chosen = shifted.gather(-1, local.unsqueeze(-1)).squeeze(-1) * here
    sums = torch.stack((weights.sum(-1), (weights * shifted).sum(-1), chosen))
    total, weighted, target = reduce_from_tensor_model_parallel_region(sums, group=group)
    log_total = total.log()
    return target - log_total, log_total - weighted / total
