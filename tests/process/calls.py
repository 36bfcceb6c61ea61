"""What a process of the mesh does when told: each takes its `context`, where the Engine is kept, and its slot."""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import psutil
import torch
from torch import Tensor

from ftppo.checkpoint.exchange import Address
from ftppo.config import Config
from ftppo.plan.topology import Layout
from ftppo.tasks.tokenizer import padded
from ftppo.worker.device import make_device, set_cuda_environment
from ftppo.worker.engine import Engine
from ftppo.worker.meeting import Rendezvous
from ftppo.worker.memory import Memory
from tests.process.collectives import Watch

TIMEOUT_S = 30.0
VOCAB, EOS, PAD = 64, 3, 0

type Context = dict[str, Any]
type Kind = Literal["cpu", "cuda"]


@dataclass(frozen=True)
class Box:
    """A part of a logical tensor as one rank holds it."""

    key: str
    shape: tuple[int, ...]  # of the whole
    offset: tuple[int, ...]
    tensor: Tensor
    mine: bool


@dataclass(frozen=True)
class Bereaved:
    """What a rank saw whose peer was lost in the middle of a call."""

    error: str | None  # name of the type of what it raised
    groups_alive: int  # after release


def build(context: Context, slot: int, config: Config, eos: int = EOS, kind: Kind = "cpu") -> Address:
    """A new Engine, alone; returns where its snapshots are found."""
    set_cuda_environment()
    memory = Memory("token", "127.0.0.1", TIMEOUT_S)
    vocab_size = padded(config.model.vocab or VOCAB)
    context["engine"] = Engine(config, make_device(config, kind), vocab_size, eos, memory)
    sizes = {axis: getattr(config.parallel, axis) for axis in ("dp", "tp", "pp", "cp")}
    context["engine"].build(Layout(**sizes), slot)
    return memory.address


def rebuild(context: Context, slot: int, layout: Layout) -> None:
    """The same Engine for a slot of another layout; its copies in memory stay."""
    context["engine"].build(layout, slot, blank=True)


def open_store(context: Context, slot: int) -> int:
    return int(context["engine"].groups.open_store(TIMEOUT_S))


def join(context: Context, slot: int, meet: Rendezvous, buddies: list[Address]) -> None:
    context["engine"].join(meet, buddies[slot], TIMEOUT_S)


def settle(context: Context, slot: int) -> int | None:
    """Wait for snapshots on their way; the newest version that the buddy holds."""
    context["engine"].memory.settle()
    delivered: int | None = context["engine"].memory.delivered
    return delivered


def call(
    context: Context, slot: int, method: str, shared: Sequence[Any], shards: Sequence[Any], which: list[int]
) -> Any:
    """Engine.`method`, with this slot's shard of the rows where there are any."""
    rows = [shards[which[slot]]] if shards else []
    return getattr(context["engine"], method)(*shared, *rows)


def boxes(context: Context, slot: int) -> list[Box]:
    """All parts of this rank's state, copied."""
    return [
        Box(part.piece.key, part.piece.global_shape, part.piece.offset, part.piece.tensor.clone(), part.mine)
        for part in context["engine"].parts
    ]


def tell_models_apart(context: Context, slot: int) -> None:
    """Give the critic a head that is not zero, the reference other weights than the policy: alike in every layout."""
    for part in context["engine"].parts:
        if part.piece.key == "critic.output_layer.weight":
            part.piece.tensor.copy_(torch.linspace(-0.3, 0.3, part.piece.tensor.numel()).view_as(part.piece.tensor))
        elif part.piece.key.startswith("reference."):
            part.piece.tensor.mul_(0.9)


def with_config(context: Context, slot: int, config: Config) -> None:
    """Go on under another config of the same shape."""
    context["engine"].config = config


def watched(context: Context, slot: int, fatal: int | None, *arguments: Any) -> list[tuple[str, int]]:
    """The collectives of `call`: (name, size of the group). The process ends inside the one numbered `fatal`."""
    with Watch(fatal) as watch:
        call(context, slot, *arguments)
    return watch.seen


def bereaved(context: Context, slot: int, *arguments: Any) -> Bereaved:
    """`call` where a peer is lost meanwhile; then lets go of the groups, as an actor does."""
    error = None
    try:
        call(context, slot, *arguments)
    except Exception as raised:
        error = type(raised).__name__
        traceback.clear_frames(raised.__traceback__)
    return Bereaved(error, context["engine"].release())


def keep_a_group(context: Context, slot: int, keep: bool) -> None:
    """Hold a reference to a group where the Engine does not know of it; or no longer."""
    context["kept"] = context["engine"].groups.live[-1] if keep else None


def usage(context: Context, slot: int) -> dict[str, int]:
    """What this process holds of the system's."""
    process = psutil.Process()
    return {
        "files": process.num_fds(),
        "sockets": len(process.net_connections(kind="all")),
        "threads": process.num_threads(),
    }
