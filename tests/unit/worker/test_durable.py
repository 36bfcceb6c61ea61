"""A rank's own part of a save: what fails behind the training is raised when it ends, and does not stop the next."""

import threading
from collections.abc import Buffer, Sequence
from pathlib import Path

import pytest
import torch

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.manifest import Header
from ftppo.checkpoint.pieces import Piece
from ftppo.config import Checkpoint
from ftppo.errors import CheckpointError, PermissionDenied
from ftppo.storage.base import ObjectStore, Upload
from ftppo.storage.local import LocalStore
from ftppo.worker import durable
from ftppo.worker.durable import Durable
from ftppo.worker.state import Part

HEADER = Header(run="r", step=1, iteration=1, generation=1, uid="a", layout={"dp": 1}, config_digest="d", state={})


class Refusing(LocalStore):
    """Takes nothing that comes in parts."""

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        raise PermissionDenied(f"{key}: no")


@pytest.fixture
def values() -> torch.Tensor:
    return torch.arange(600.0)


@pytest.fixture
def rank(tmp_path: Path, values: torch.Tensor) -> Durable:
    pieces = (Piece("w", (600,), (0,), values), Piece("copy of another's", (600,), (0,), values))
    parts = [Part(piece, mine=mine) for piece, mine in zip(pieces, (True, False), strict=True)]
    return Durable(Checkpoint(url=str(tmp_path), part_bytes=1024, retries=0), 0, parts)


def test_what_is_saved_is_the_state_when_it_began(rank: Durable, values: torch.Tensor, tmp_path: Path) -> None:
    rank.begin(HEADER.prefix)
    rank.settle()
    values.zero_()
    written = rank.end()
    record = ShardRecord.from_bytes(written.record, "")
    assert rank.idle and [item.key for item in record.items] == ["w"]
    rank.begin_publish(HEADER, [written], 1)
    manifest = rank.end_publish()
    assert manifest is not None
    Durable(rank.knobs, 1, rank.parts[:1]).load(manifest)
    assert torch.equal(values, torch.arange(600.0))


def test_who_changes_the_state_waits_for_the_copy_and_the_wait_is_told(
    rank: Durable, values: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, gate = durable._copies, threading.Event()

    def slow(pieces: Sequence[Piece]) -> list[Piece]:
        gate.wait(30)
        return copies(pieces)

    monkeypatch.setattr(durable, "_copies", slow)
    rank.begin(HEADER.prefix)
    release = threading.Timer(0.3, gate.set)
    release.start()
    rank.settle()
    assert gate.is_set()
    values.zero_()
    written = rank.end()
    release.join()
    assert 0.1 < written.stalled_s < 20.0
    rank.begin_publish(HEADER, [written], 1)
    manifest = rank.end_publish()
    assert manifest is not None
    Durable(rank.knobs, 1, rank.parts[:1]).load(manifest)
    assert torch.equal(values, torch.arange(600.0))


def test_a_failure_behind_the_training_is_raised_at_the_end_and_stops_no_later_save(
    rank: Durable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refusing(knobs: Checkpoint) -> ObjectStore:
        return Refusing(tmp_path)

    with monkeypatch.context() as patch:
        patch.setattr(durable, "store_of", refusing)
        rank.begin(HEADER.prefix)
        with pytest.raises(PermissionDenied, match=r"__0_0\.distcp: no"):
            rank.end()
    assert rank.idle
    rank.begin(HEADER.prefix)
    assert ShardRecord.from_bytes(rank.end().record, "").objects


def test_one_that_nobody_ended_is_waited_for(rank: Durable, tmp_path: Path) -> None:
    rank.begin(HEADER.model_copy(update={"uid": "lost"}).prefix)
    rank.begin(HEADER.prefix)
    rank.end()
    assert len({info.key.split("/")[1] for info in LocalStore(tmp_path).list()}) == 2


def test_who_was_not_asked_to_publish_has_nothing_to_tell(rank: Durable) -> None:
    assert rank.end_publish() is None and rank.idle


def test_what_fails_while_it_is_published_is_raised_when_that_is_asked_for(rank: Durable) -> None:
    rank.begin_publish(HEADER, [], 1)
    with pytest.raises(CheckpointError, match="records of writers 0 to 0 are needed"):
        rank.end_publish()
    assert rank.idle and rank.end_publish() is None


def test_what_is_published_when_the_generation_ends_is_not_a_checkpoint_and_does_not_hold_up_the_next(
    rank: Durable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gate, put = threading.Event(), LocalStore.put

    def slow(store: LocalStore, key: str, data: Buffer, crc32: int | None = None) -> None:
        gate.wait(30)
        put(store, key, data, crc32)

    rank.begin(HEADER.prefix)
    written = rank.end()
    monkeypatch.setattr(LocalStore, "put", slow)
    rank.begin_publish(HEADER, [written], 1)
    assert not rank.idle
    rank.abandon()
    threading.Timer(0.2, gate.set).start()
    later = HEADER.model_copy(update={"uid": "b", "generation": 2})
    rank.begin(later.prefix)
    assert gate.is_set(), "one at a time"
    assert Catalog(LocalStore(tmp_path)).steps() == []
    rank.begin_publish(later, [rank.end()], 1)
    manifest = rank.end_publish()
    assert manifest is not None and manifest.uid == "b"
