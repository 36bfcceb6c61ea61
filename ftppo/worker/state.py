"""A rank's trainable state as Pieces. Comes in: models and optimizers; goes out: Pieces to save, load, copy, digest.

Names and boxes are Megatron-Core's own for a `torch_dist` checkpoint: the policy plain, the critic under `critic.`, the
frozen reference under `reference.`. Taken once after building; the tensors are live views.
"""

import hashlib
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
from megatron.core.dist_checkpointing.utils import extract_sharded_base
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from ftppo.checkpoint.pieces import Piece, flat_pieces
from ftppo.rng import generator
from ftppo.worker.model import Learner, inner_optimizers, main_weights


@dataclass(frozen=True)
class Part:
    """A Piece, and whether this rank is the one that writes it (others hold copies)."""

    piece: Piece
    mine: bool


def model_parts(model: GPTModel, prefix: str) -> list[Part]:
    """All parameters of this rank's part of `model`, under Megatron-Core's names with `prefix` before them."""
    return [Part(_piece(prefix, shard), _writes(shard)) for shard, _ in _shards(model)]


def optimizer_parts(learner: Learner, with_main: bool = False) -> list[Part]:
    """Moments, and float32 weights where the model's are not: this rank's flat shard, cut into boxes of the whole.

    `with_main`: float32 weights in any case. That is all which this rank alone among its data-parallel peers keeps up
    to date; `gather_weights` makes the rest from it.
    """
    shards_of = {id(param): [] for param in learner.module.parameters()}  # type: ignore[var-annotated]
    for shard, param in _shards(learner.module):
        shards_of[id(param)].append((shard, (shard.data.storage_offset() - param.storage_offset())))
    return [
        Part(piece, _is_main_of_model_parallel(shard))
        for param, start, name, flat in _optimizer_tensors(learner, with_main)
        for shard, base in shards_of[id(param)]
        for piece in _overlap(f"{learner.prefix}optimizer.state.{name}.{shard.key}", shard, base, start, flat)
    ]


def gather_weights(learner: Learner) -> None:
    """Make a model's weights from the float32 shards of all its data-parallel peers. Every one of them must call it."""
    for optimizer in inner_optimizers(learner):
        optimizer._copy_main_params_to_model_params()
        optimizer.start_param_sync_for_bucket_group_subset()


def learner_parts(learner: Learner, writes_counters: bool) -> list[Part]:
    """All of a learner that a checkpoint holds."""
    counters = counter_parts(learner, writes_counters)
    return model_parts(learner.module, learner.prefix) + optimizer_parts(learner) + counters


def counter_parts(learner: Learner, writes: bool) -> list[Part]:
    """Adam's own step counts, one a parameter and all equal; if this rank `writes` them, the first one is for all."""
    states = [state for inner in inner_optimizers(learner) for state in inner.optimizer.state.values()]
    name = f"{learner.prefix}optimizer.step"
    return [Part(Piece(name, (), (), state["step"]), writes and place == 0) for place, state in enumerate(states)]


def initialize(model: GPTModel, role: str, seed: int, std: float) -> None:
    """Draw every weight by its name: the same numbers in any layout. Norms are 1; biases and a critic's head are 0."""
    for part in model_parts(model, ""):
        piece = part.piece
        if "norm" in piece.key:
            piece.tensor.fill_(1.0)
        elif piece.key.endswith(".bias") or (role == "critic" and piece.key.startswith("output_layer")):
            piece.tensor.zero_()
        else:
            _draw(piece, role, seed, std, model.config.num_layers)


def copy_weights(source: GPTModel, target: GPTModel) -> None:
    """Copy what has the same name and shape from one model of this rank to another."""
    given = dict(source.named_parameters())
    with torch.no_grad():
        for name, param in target.named_parameters():
            if name in given and given[name].shape == param.shape:
                param.copy_(given[name])


def digest(parts: Iterable[Part]) -> str:
    """SHA-256 over the bytes of all that this rank writes, in the order of names and places."""
    found = hashlib.sha256()
    for part in sorted((part for part in parts if part.mine), key=lambda part: (part.piece.key, part.piece.offset)):
        found.update(f"{part.piece.key}{part.piece.offset}{part.piece.size}".encode())
        found.update(part.piece.tensor.detach().to("cpu").contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _shards(model: GPTModel) -> Iterator[tuple[ShardedTensor, torch.nn.Parameter]]:
    """Megatron-Core's description of each parameter (two of a fused gate and up projection), with the parameter."""
    by_storage = {param.data_ptr(): param for param in model.parameters()}
    described, _ = extract_sharded_base(model.sharded_state_dict(metadata=_metadata()))
    for entry in _leaves(described):
        shards = entry.build() if isinstance(entry, ShardedTensorFactory) else [entry]
        param = by_storage[entry.data.data_ptr()]
        for shard in shards:
            yield shard, param


def _metadata() -> dict[str, Any]:
    # Megatron-Core puts a process group into it: one that is shared would carry the group into the next generation.
    return {"singleton_local_shards": False, "non_homogeneous_layers": False}


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, dict):
        for value in tree.values():
            yield from _leaves(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _leaves(value)
    elif isinstance(tree, ShardedTensor | ShardedTensorFactory):
        yield tree


def _piece(prefix: str, shard: ShardedTensor) -> Piece:
    tensor = shard.data.detach()
    lifted = tensor.view(*(1 for _ in range(shard.prepend_axis_num)), *tensor.shape)
    return Piece(prefix + shard.key, tuple(shard.global_shape), tuple(shard.global_offset), lifted)


def _is_main_of_model_parallel(shard: ShardedTensor) -> bool:
    return all(part == 0 for part in shard.replica_id[:-1])


def _writes(shard: ShardedTensor) -> bool:
    # Every data-parallel rank holds the weights: which one writes a tensor hangs on its name, to spread the work.
    chosen = zlib.crc32(f"{shard.key}{shard.global_offset}".encode()) % parallel_state.get_data_parallel_world_size(
        True
    )
    return _is_main_of_model_parallel(shard) and parallel_state.get_data_parallel_rank(True) == chosen


def _optimizer_tensors(learner: Learner, with_main: bool) -> Iterator[tuple[torch.nn.Parameter, int, str, Tensor]]:
    """(parameter, start of this rank's flat range in it, name, flat tensor) for each tensor of optimizer state.

    Float32 weights are among them where the model's are not, or `with_main`: then they may be views of the model's.
    Tensors of one name come one after another, in the order in which they lie in memory.
    """
    for optimizer in inner_optimizers(learner):
        pairs = main_weights(optimizer)
        for name in ("exp_avg", "exp_avg_sq", "fp32_param"):
            for param, main in pairs:
                start = optimizer._get_model_param_range_map(param)["param"].start
                if name != "fp32_param":
                    yield param, start, name, optimizer.optimizer.state[main][name].view(-1)
                elif with_main or param.dtype != torch.float32:
                    yield param, start, name, main.detach().view(-1)


def _overlap(key: str, shard: ShardedTensor, base: int, start: int, flat: Tensor) -> list[Piece]:
    """The boxes of `shard` (elements [base, base + n) of its parameter) that `flat` (from element `start`) covers."""
    numel = math.prod(shard.local_shape)
    first, last = max(base, start), min(base + numel, start + flat.numel())
    if first >= last:
        return []
    local_shape = (*(1 for _ in range(shard.prepend_axis_num)), *shard.local_shape)
    part = flat[first - start : last - start]
    return flat_pieces(key, shard.global_shape, local_shape, shard.global_offset, first - base, part)


def _draw(piece: Piece, role: str, seed: int, std: float, num_layers: int) -> None:
    into_residual = piece.key.endswith(("linear_proj.weight", "linear_fc2.weight"))
    scale = std / math.sqrt(2 * num_layers) if into_residual else std
    stacked = "layers." in piece.key  # the first axis counts the layers; each has a draw of its own
    names = range(piece.offset[0], piece.offset[0] + piece.size[0]) if stacked else [-1]
    shape, offset = (piece.global_shape, piece.offset)
    for row, layer in enumerate(names):
        target = piece.tensor[row] if stacked else piece.tensor
        inner_shape, inner_offset = (shape[1:], offset[1:]) if stacked else (shape, offset)
        whole = torch.randn(inner_shape, generator=generator(seed, "weights", role, piece.key, layer)) * scale
        box = tuple(slice(at, at + size) for at, size in zip(inner_offset, target.shape, strict=True))
        target.copy_(whole[box])
