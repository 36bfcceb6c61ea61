"""The catalog finds what is published, says what is wrong with it, and removes nothing that is alive."""

import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from ftppo.checkpoint.catalog import Attempt, Catalog
from ftppo.checkpoint.manifest import Manifest, manifest_key
from ftppo.checkpoint.pieces import Piece
from ftppo.clock import FakeClock
from ftppo.errors import CheckpointError, CorruptCheckpoint
from ftppo.storage.memory import MemoryStore

from .conftest import Save

type State = Callable[[float], list[list[Piece]]]


def prefixes(attempts: Sequence[Attempt]) -> list[str]:
    return [one.prefix for one in attempts]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1000.0)


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock=clock)


@pytest.fixture
def manifests(store: MemoryStore, save: Save, state: State) -> list[Manifest]:
    """Published out of order: steps 5, 40, 7."""
    return [save(store, state(float(step)), step=step) for step in (5, 40, 7)]


def test_published_is_what_storage_holds_newest_first(store: MemoryStore, manifests: list[Manifest]) -> None:
    store.put("step-00000099/attempt-000001-x/__0_0.distcp", b"never published")
    store.put("notes/step-00000098/manifest.json", b"somebody's own")
    catalog = Catalog(store)
    assert catalog.steps() == [40, 7, 5]
    assert catalog.published() == sorted(manifests, key=lambda manifest: -manifest.step)
    assert catalog.latest() == manifests[1] == catalog.load(40)
    assert manifests[1].size_bytes == sum(info.size_bytes for info in store.list(f"{manifests[1].prefix}/"))


def test_nothing_published(store: MemoryStore) -> None:
    catalog = Catalog(store)
    assert catalog.latest() is None and catalog.published() == []
    with pytest.raises(CheckpointError, match="no checkpoint of step 3; there are"):
        catalog.load(3)
    assert len(catalog.verify(3)) == 1


@pytest.mark.parametrize("content", [b"", b"{}", b'{"format": 2}'])
def test_a_manifest_that_cannot_be_read_is_an_error_not_an_older_step(
    content: bytes, store: MemoryStore, manifests: list[Manifest]
) -> None:
    store.put(manifest_key(40), content)
    with pytest.raises(CorruptCheckpoint, match=r"step-00000040/manifest\.json"):
        Catalog(store).latest()
    assert Catalog(store).latest(skip_unreadable=True) == manifests[2]
    assert [one.step for one in Catalog(store).published()] == [7, 5]
    assert "manifest.json" in Catalog(store).verify(40)[0]
    assert Catalog(store).sweep(-1.0) == []  # nobody can say what it names
    Catalog(store).prune([40])
    assert Catalog(store).steps() == [7, 5]
    assert prefixes(Catalog(store).sweep(-1.0)) == [manifests[1].prefix]


def test_where_no_manifest_can_be_read_the_newest_is_named(store: MemoryStore, manifests: list[Manifest]) -> None:
    for step in (5, 7, 40):
        store.put(manifest_key(step), b"")
    with pytest.raises(CorruptCheckpoint, match=r"step-00000040/manifest\.json"):
        Catalog(store).latest(skip_unreadable=True)


def test_a_withdrawn_checkpoint_is_an_attempt_and_its_step_is_free(
    store: MemoryStore, manifests: list[Manifest], save: Save, state: State, clock: FakeClock
) -> None:
    catalog = Catalog(store, clock)
    catalog.withdraw(40)
    assert catalog.steps() == [7, 5] and prefixes(catalog.leftovers(0.0)) == [manifests[1].prefix]
    again = save(store, state(41.0), step=40)
    assert catalog.latest() == again and catalog.verify(40, deep=True) == []
    assert prefixes(catalog.sweep(0.0)) == [manifests[1].prefix] and catalog.verify(40, deep=True) == []


def test_attempts_are_counted_and_dated(store: MemoryStore, manifests: list[Manifest], clock: FakeClock) -> None:
    clock.advance(5.0)
    store.put("step-00000041/attempt-000001-x/__0_0.distcp", b"left")
    store.put("step-00000041/notes.txt", b"somebody's own")
    left, *others = Catalog(store, clock).attempts()
    assert left == Attempt(41, "step-00000041/attempt-000001-x", 1, 4, 1005.0)
    wanted = [Attempt(one.step, one.prefix, len(one.objects), one.size_bytes, 1000.0) for one in manifests]
    assert others == sorted(wanted, key=lambda one: -one.step)


def test_a_manifest_under_another_step_is_refused(store: MemoryStore, manifests: list[Manifest]) -> None:
    store.put(manifest_key(41), store.get(manifest_key(40)))
    with pytest.raises(CorruptCheckpoint, match="is about step 40"):
        Catalog(store).load(41)
    Catalog(store).prune([41])
    assert Catalog(store).verify(40, deep=True) == []


def test_verify_names_each_damaged_object(store: MemoryStore, manifests: list[Manifest]) -> None:
    prefix, catalog = manifests[1].prefix, Catalog(store)
    assert catalog.verify(40) == catalog.verify(40, deep=True) == []
    data = store.get(f"{prefix}/__0_0.distcp")
    store.put(f"{prefix}/__0_0.distcp", bytes([data[0] ^ 1]) + data[1:])
    store.put(f"{prefix}/common.pt", b"")
    store.delete(f"{prefix}/__1_0.distcp")
    shallow, deep = catalog.verify(40), catalog.verify(40, deep=True)
    assert [line.split("/")[-1].split()[0] for line in shallow] == ["__1_0.distcp", "common.pt"]
    assert [line.split("/")[-1].split()[0] for line in deep] == ["__0_0.distcp", "__1_0.distcp", "common.pt"]
    assert catalog.verify(7, deep=True) == []


def test_a_changed_index_is_corrupt(store: MemoryStore, manifests: list[Manifest]) -> None:
    key = f"{manifests[1].prefix}/index.json"
    store.put(key, store.get(key).replace(b'"w"', b'"v"'))
    with pytest.raises(CorruptCheckpoint, match=r"index\.json is not what was written"):
        Catalog(store).index(manifests[1])
    assert "index.json" in Catalog(store).verify(40)[0]
    store.delete(key)
    with pytest.raises(CorruptCheckpoint, match=r"index\.json is missing"):
        Catalog(store).index(manifests[1])


def test_prune_removes_the_checkpoint_and_nothing_else(store: MemoryStore, manifests: list[Manifest]) -> None:
    store.put("step-00000007/attempt-000009-live/__0_0.distcp", b"another attempt")
    Catalog(store).prune([7, 5, 6])
    assert Catalog(store).steps() == [40]
    assert [info.key for info in store.list("step-00000007/")] == ["step-00000007/attempt-000009-live/__0_0.distcp"]


def test_sweep_takes_old_leftovers_only(store: MemoryStore, manifests: list[Manifest], clock: FakeClock) -> None:
    old, live, young = (f"step-00000040/attempt-00000{number}-x" for number in (2, 3, 4))
    for prefix in (old, live):
        store.put(f"{prefix}/__0_0.distcp", b"left")
    clock.advance(100.0)
    store.put(f"{young}/__0_0.distcp", b"left")
    store.put(f"{live}/__1_0.distcp", b"left")
    store.put("step-00000040/notes.txt", b"somebody's own")
    clock.advance(10.0)
    catalog = Catalog(store, clock)
    assert prefixes(catalog.sweep(50.0, live=[live])) == [old]
    assert catalog.sweep(50.0) == []
    clock.advance(50.0)
    assert prefixes(catalog.sweep(50.0, live=[live])) == [young]
    assert prefixes(catalog.sweep(50.0)) == [live]
    assert store.get("step-00000040/notes.txt") == b"somebody's own"
    assert all(catalog.verify(step, deep=True) == [] for step in (5, 7, 40))


def test_sweep_aborts_uploads_never_finished_but_no_live_ones(store: MemoryStore, clock: FakeClock) -> None:
    store.start_upload("step-00000001/attempt-000001-x/__0_0.distcp", 1024)
    clock.advance(10.0)
    Catalog(store, clock).sweep(5.0, live=["step-00000001/attempt-000001-x"])
    assert store.sweep_uploads("", 1e9) == 0
    Catalog(store, clock).sweep(5.0)
    assert store.sweep_uploads("", -1.0) == 0


def test_the_catalog_needs_no_torch() -> None:
    code = "import sys, ftppo.checkpoint.catalog; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
