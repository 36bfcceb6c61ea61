"""What the checkpoint tests share: tensors cut at random, and a whole save in one call."""

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import write_shards
from ftppo.clock import FakeClock
from ftppo.storage.base import ObjectStore
from ftppo.storage.memory import MemoryStore
from ftppo.storage.retry import Retrier, RetryPolicy
from tests.unit.checkpoint.loopback import Loopback

type Cut = Callable[[str, Tensor, random.Random], list[Piece]]
type Save = Callable[..., Manifest]


@pytest.fixture
def retrier() -> Retrier:
    return Retrier(RetryPolicy(retries=2), FakeClock())


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def cut() -> Cut:
    """cut(key, whole, draw): views of `whole` that tile it at random."""

    def pieces(key: str, whole: Tensor, draw: random.Random) -> list[Piece]:
        parts = [(tuple(0 for _ in whole.shape), whole)]
        for _ in range(draw.randint(0, 8) if whole.dim() else 0):
            offset, part = parts.pop(draw.randrange(len(parts)))
            axis = draw.randrange(whole.dim())
            at = draw.randint(0, part.shape[axis])
            moved = (*offset[:axis], offset[axis] + at, *offset[axis + 1 :])
            parts += [(offset, part.narrow(axis, 0, at)), (moved, part.narrow(axis, at, part.shape[axis] - at))]
        return [Piece(key, tuple(whole.shape), offset, part) for offset, part in parts if part.numel()]

    return pieces


@pytest.fixture
def save(retrier: Retrier) -> Save:
    """save(store, shards, step, **header): every writer's pieces written and published."""
    uids = itertools.count()

    def whole_save(store: ObjectStore, shards: Sequence[Sequence[Piece]], step: int = 1, **header: object) -> Manifest:
        fields = {
            "run": "r",
            "iteration": step,
            "generation": 1,
            "uid": f"u{next(uids)}",
            "layout": {"dp": len(shards)},
        }
        about = Header.model_validate(
            {"step": step, "config_digest": "d", "state": {"cursor": step}, **fields, **header}
        )
        records = [
            write_shards(pieces, store, about.prefix, writer, retrier, part_bytes=1024)
            for writer, pieces in enumerate(shards)
        ]
        return publish(store, about, records, len(shards), FakeClock())

    return whole_save


def halves(value: float) -> list[list[Piece]]:
    """Two writers' pieces of a state that `value` tells apart from others."""
    w, b = torch.full((4, 6), value), torch.full((), value, dtype=torch.float64)
    return [[Piece("w", (4, 6), (0, 0), w[:2]), Piece("b", (), (), b)], [Piece("w", (4, 6), (2, 0), w[2:])]]


@pytest.fixture
def state() -> Callable[[float], list[list[Piece]]]:
    return halves


@pytest.fixture
def loopback() -> Iterator[Loopback]:
    with Loopback() as opened:
        yield opened
