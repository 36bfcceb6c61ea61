"""A small checkpoint of two writers, one with parts and one without, as a run would save it. Comes in: a store, a step,
a value that tells states apart; goes out: a published checkpoint, or what a store's newest one holds.
"""

import secrets

import torch

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.clock import FakeClock
from ftppo.storage.base import PAGE_BYTES, ObjectStore
from ftppo.storage.retry import Retrier, RetryPolicy
from ftppo.storage.retrying import RetryingStore

PART_BYTES = PAGE_BYTES  # two tensors of the smallest checkpoint are more than that, one is less
COLUMNS = 300  # of a tensor


def shards(value: float, rows: int = 2) -> list[list[Piece]]:
    """What each of two writers holds: upper and lower half of `w` [2 * rows, COLUMNS], and the first one `b` too."""
    w = torch.arange(2.0 * rows * COLUMNS).view(2 * rows, COLUMNS) * value
    b = torch.full((), value, dtype=torch.float64)
    upper = [Piece("w", tuple(w.shape), (0, 0), w[:rows]), Piece("b", (), (), b)]
    return [upper, [Piece("w", tuple(w.shape), (rows, 0), w[rows:])]]


def save(
    store: ObjectStore, step: int, rows: int = 2, retrier: Retrier | None = None, uid: str | None = None
) -> Manifest:
    """Save state `step` as the checkpoint of `step`; without a `retrier` each operation has one attempt."""
    retrier = retrier or Retrier(RetryPolicy(retries=0), FakeClock())
    header = Header(
        run="r",
        step=step,
        iteration=step,
        generation=1,
        uid=uid or secrets.token_hex(4),
        layout={"dp": 2, "tp": 1, "pp": 1, "cp": 1},
        config_digest="d",
        state={"cursor": step},
    )
    records = [
        write_shards(pieces, store, header.prefix, writer, retrier, PART_BYTES, ring_buffers=1)
        for writer, pieces in enumerate(shards(float(step), rows))
    ]
    return publish(RetryingStore(store, retrier), header, records, 2)


def loaded(store: ObjectStore, rows: int = 2) -> int:
    """The step of the newest checkpoint, which holds exactly that step's state."""
    catalog = Catalog(store)
    manifest = catalog.latest()
    assert manifest is not None
    wanted = [piece for pieces in shards(float(manifest.step), rows) for piece in pieces]
    found = [Piece(piece.key, piece.global_shape, piece.offset, torch.zeros_like(piece.tensor)) for piece in wanted]
    read_shards(found, catalog.index(manifest), store, manifest.prefix)
    assert all(torch.equal(a.tensor, b.tensor) for a, b in zip(found, wanted, strict=True))
    return manifest.step
