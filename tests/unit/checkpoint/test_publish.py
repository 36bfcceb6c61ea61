"""Published is all or nothing, once; whoever dies at whatever operation leaves the old state or the new one."""

import threading
from collections.abc import Buffer, Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.manifest import Header, manifest_key
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.clock import FakeClock
from ftppo.errors import AlreadyExists, CheckpointError, StorageError
from ftppo.storage.base import ObjectInfo, ObjectStore, Upload
from ftppo.storage.local import LocalStore
from ftppo.storage.memory import MemoryStore
from ftppo.storage.retry import Retrier

from .conftest import Save

type State = Callable[[float], list[list[Piece]]]

HEADER = Header(run="r", step=1, iteration=1, generation=1, uid="a", layout={"dp": 2}, config_digest="d", state={})


def loaded(store: ObjectStore) -> tuple[int, float]:
    """Step and value of the newest checkpoint, which must be whole and of one state."""
    catalog = Catalog(store)
    manifest = catalog.latest()
    assert manifest is not None
    assert catalog.verify(manifest.step, deep=True) == []
    w, b = torch.zeros(4, 6), torch.zeros((), dtype=torch.float64)
    read_shards([Piece("w", (4, 6), (0, 0), w), Piece("b", (), (), b)], catalog.index(manifest), store, manifest.prefix)
    assert (w == b).all()
    return manifest.step, b.item()


def records(
    store: ObjectStore, state: list[list[Piece]], retrier: Retrier, header: Header = HEADER
) -> list[ShardRecord]:
    return [write_shards(pieces, store, header.prefix, writer, retrier) for writer, pieces in enumerate(state)]


def test_a_failed_or_missing_writer_vetoes(store: MemoryStore, state: State, retrier: Retrier) -> None:
    good = records(store, state(1.0), retrier)
    with pytest.raises(CheckpointError, match="1 of 2 writers failed; writer 1: disk full"):
        publish(store, HEADER, [good[0], ShardRecord(writer=1, error="disk full")], 2)
    with pytest.raises(CheckpointError, match=r"writers 0 to 1 are needed, there are \[0\]"):
        publish(store, HEADER, good[:1], 2)
    with pytest.raises(CheckpointError, match=r"there are \[0, 0\]"):
        publish(store, HEADER, [good[0], good[0]], 2)
    assert Catalog(store).steps() == []


def test_a_gap_vetoes(store: MemoryStore, state: State, retrier: Retrier) -> None:
    with pytest.raises(CheckpointError, match="w: 12 of 24 elements were written by nobody"):
        publish(store, HEADER, records(store, state(1.0)[:1], retrier), 1)
    assert Catalog(store).steps() == []


@pytest.mark.parametrize("size", [None, 0, 100])
def test_an_object_of_another_size_vetoes(size: int | None, store: MemoryStore, state: State, retrier: Retrier) -> None:
    good, clock = records(store, state(1.0), retrier), FakeClock()
    store.delete(f"{HEADER.prefix}/__1_0.distcp")
    if size is not None:
        store.put(f"{HEADER.prefix}/__1_0.distcp", bytes(size))
    with pytest.raises(CheckpointError, match=r"__1_0\.distcp: (missing|0|100) where \d+ bytes were written"):
        publish(store, HEADER, good, 2, clock, visible_s=5.0)
    assert Catalog(store).steps() == [] and 4.0 < clock.time <= 6.0


class LateStore(MemoryStore):
    """Shows nothing in listings until the third."""

    listings = 0

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        self.listings += 1
        return super().list(prefix) if self.listings > 2 else []


def test_objects_that_show_late_are_waited_for(state: State, retrier: Retrier) -> None:
    store = LateStore()
    publish(store, HEADER, records(store, state(1.0), retrier), 2, FakeClock())
    assert loaded(store) == (1, 1.0)


def test_the_same_content_again_is_success_and_touches_nothing(
    store: MemoryStore, state: State, retrier: Retrier, save: Save
) -> None:
    first = publish(store, HEADER, records(store, state(1.0), retrier), 2)
    before = {info.key: store.get(info.key) for info in store.list()}
    assert publish(store, HEADER, records(store, state(1.0), retrier), 2) == first
    later = HEADER.model_copy(update={"generation": 4, "uid": "later"})
    assert publish(store, later, records(store, state(1.0), retrier, later), 2) == first
    assert all(store.get(key) == data for key, data in before.items())


@pytest.mark.parametrize("update", [{"state": {"cursor": 9}}, {"config_digest": "e"}, {"iteration": 2}])
def test_other_content_never_replaces_a_published_step(
    update: dict[str, object], store: MemoryStore, state: State, retrier: Retrier
) -> None:
    publish(store, HEADER, records(store, state(1.0), retrier), 2)
    before = store.get(manifest_key(1))
    other = HEADER.model_copy(update={"uid": "b"})
    with pytest.raises(AlreadyExists, match="step 1 is published with other content, step-00000001/attempt-000001-a"):
        publish(store, other, records(store, state(2.0), retrier, other), 2)
    with pytest.raises(AlreadyExists):
        publish(store, HEADER.model_copy(update=update), records(store, state(1.0), retrier), 2)
    assert store.get(manifest_key(1)) == before and loaded(store) == (1, 1.0)


def test_a_step_that_was_published_in_another_layout_is_published(
    store: MemoryStore, state: State, retrier: Retrier
) -> None:
    first = publish(store, HEADER, records(store, state(1.0), retrier), 2)
    shrunk = HEADER.model_copy(update={"layout": {"dp": 1}, "generation": 2, "uid": "b"})
    assert publish(store, shrunk, records(store, state(1.001), retrier, shrunk), 2) == first
    with pytest.raises(AlreadyExists):
        other = shrunk.model_copy(update={"state": {"cursor": 9}})
        publish(store, other, records(store, state(1.001), retrier, other), 2)


@pytest.mark.parametrize("kind", ["memory", "local"])
def test_of_racing_attempts_one_wins(kind: str, tmp_path: Path, state: State, retrier: Retrier) -> None:
    store: ObjectStore = MemoryStore() if kind == "memory" else LocalStore(tmp_path)
    headers = [HEADER.model_copy(update={"uid": f"u{racer}"}) for racer in range(4)]
    stored = [records(store, state(float(racer)), retrier, header) for racer, header in enumerate(headers)]
    start, outcomes = threading.Barrier(4), dict[int, str]()

    def race(racer: int) -> None:
        start.wait(10)
        try:
            outcomes[racer] = publish(store, headers[racer], stored[racer], 2).uid
        except AlreadyExists:
            outcomes[racer] = ""

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    (winner,) = [racer for racer, uid in outcomes.items() if uid]
    assert len(outcomes) == 4 and loaded(store) == (1, float(winner))


class Killed(BaseException):
    """The process is gone."""


class KillStore:
    """Passes operations on until number `at`, from 0, where the process dies: before the operation or after it."""

    def __init__(self, inner: ObjectStore, at: int, after: bool) -> None:
        self.inner, self.url, self.at, self.after = inner, inner.url, at, after
        self.count = 0
        self.lock = threading.Lock()

    def run[T](self, operation: Callable[[], T]) -> T:
        with self.lock:
            number, self.count = self.count, self.count + 1
            if number > self.at or (number == self.at and not self.after):
                raise Killed
            result = operation()
            if number == self.at:
                raise Killed
            return result

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        self.run(lambda: self.inner.put(key, data, crc32))

    def create(self, key: str, data: Buffer) -> None:
        self.run(lambda: self.inner.create(key, data))

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        return self.run(lambda: self.inner.get(key, start, length))

    def stat(self, key: str) -> ObjectInfo:
        return self.run(lambda: self.inner.stat(key))

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        return self.run(lambda: self.inner.list(prefix))

    def delete(self, key: str) -> None:
        self.run(lambda: self.inner.delete(key))

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        return KillUpload(self, self.run(lambda: self.inner.start_upload(key, part_bytes)))

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        return self.run(lambda: self.inner.sweep_uploads(prefix, older_than_s))

    def close(self) -> None:
        self.inner.close()


class KillUpload:
    def __init__(self, store: KillStore, inner: Upload) -> None:
        self.store, self.inner = store, inner

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        self.store.run(lambda: self.inner.part(number, data, crc32))

    def complete(self) -> None:
        self.store.run(self.inner.complete)

    def abort(self) -> None:
        with suppress(Killed):  # called by a writer's way out, which a dead process does not take
            self.store.run(self.inner.abort)


def operations(run: Callable[[KillStore], object], prepare: Callable[[], ObjectStore]) -> int:
    """How many operations `run` takes when nobody dies."""
    counted = KillStore(prepare(), at=1_000_000, after=True)
    run(counted)
    return counted.count


@pytest.mark.parametrize("kind", ["memory", "local"])
@pytest.mark.parametrize("after", [False, True])
def test_dying_at_any_operation_of_a_save_leaves_the_old_state_or_the_new(
    kind: str, after: bool, tmp_path: Path, save: Save, state: State
) -> None:
    made = []

    def prepare() -> ObjectStore:
        made.append(0)
        store: ObjectStore = MemoryStore() if kind == "memory" else LocalStore(tmp_path / str(len(made)))
        save(store, state(1.0), step=1)
        return store

    def save_step_2(store: ObjectStore) -> object:
        return save(store, state(2.0), step=2)

    num_operations = operations(save_step_2, prepare)
    assert num_operations > 10
    for at in range(num_operations):
        store = prepare()
        with pytest.raises((Killed, StorageError)):
            save_step_2(KillStore(store, at, after))
        published = at == num_operations - 1 and after  # the manifest comes last
        assert loaded(store) == ((2, 2.0) if published else (1, 1.0)), at
        save_step_2(store)
        assert loaded(store) == (2, 2.0)
        manifests = Catalog(store).published()
        Catalog(store).sweep(older_than_s=-1.0)
        wanted = [f"{entry.prefix}/{stored.name}" for entry in manifests for stored in entry.objects]
        assert sorted([*wanted, manifest_key(1), manifest_key(2)]) == [info.key for info in store.list()], at


@pytest.mark.parametrize("after", [False, True])
def test_dying_at_any_operation_of_a_removal_leaves_the_rest_whole(after: bool, save: Save, state: State) -> None:
    def prepare() -> ObjectStore:
        store = MemoryStore()
        save(store, state(1.0), step=1)
        save(store, state(2.0), step=2)
        return store

    def remove(store: ObjectStore) -> None:
        Catalog(store).prune([1])
        Catalog(store).sweep(older_than_s=-1.0)

    for at in range(operations(remove, prepare)):
        store = prepare()
        with pytest.raises(Killed):
            remove(KillStore(store, at, after))
        steps = Catalog(store).steps()
        assert all(Catalog(store).verify(step, deep=True) == [] for step in steps) and loaded(store) == (2, 2.0)
        remove(store)
        assert Catalog(store).steps() == [2]
        assert all(info.key.startswith("step-00000002/") for info in store.list())
