"""The weights that training begins with. Comes in: a model as built; goes out: the same, drawn or read."""

from megatron.core.models.gpt import GPTModel

from ftppo.checkpoint.huggingface import reader as huggingface
from ftppo.checkpoint.huggingface.names import OUTPUT
from ftppo.checkpoint.torchdist import reader as torchdist
from ftppo.config import Config
from ftppo.worker.state import initialize, model_parts


def begin(model: GPTModel, role: str, config: Config) -> int:
    """Fill every weight, this rank's slices alone; returns the bytes read, 0 where all are drawn.

    A critic has the policy's trunk, and a head of 0. Raises ConfigError, CheckpointError where what is read lacks what
    the model needs.
    """
    if config.model.path is None and config.model.weights is None:
        initialize(model, role, config.seed, config.model.init_std)
        return 0
    pieces = [part.piece for part in model_parts(model, "")]
    head = OUTPUT if role == "critic" else None
    for piece in pieces:
        if piece.key == head:
            piece.tensor.zero_()
    pieces = [piece for piece in pieces if piece.key != head]
    if config.model.weights is not None:
        return torchdist.read_weights(pieces, config, model.num_tokens)
    return huggingface.read_weights(pieces, config.model)
