"""Saving and restoring: what is published survives failed saves, and what is damaged is passed over by all ranks."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.manifest import manifest_key
from ftppo.clock import FakeClock
from ftppo.config import Config
from ftppo.driver.mesh import GenerationBroken
from ftppo.driver.record import CheckpointRecord
from ftppo.driver.saver import Saver
from ftppo.errors import AlreadyExists, CheckpointError, CorruptCheckpoint, PermissionDenied, StorageError
from ftppo.storage.local import LocalStore
from ftppo.types import DriverState

from .ranks import Ranks


class Run:
    """One start of a run: a saver and ranks over a folder that outlives it."""

    def __init__(self, folder: Path, **knobs: Any) -> None:
        config = Config.model_validate({"checkpoint": {"url": str(folder), "retries": 0, **knobs}})
        self.store = LocalStore(folder)
        self.saver, self.ranks, self.told = Saver(config, FakeClock(1e9)), Ranks(self.store), list[str]()

    def save(self, step: int, value: float | None = None) -> CheckpointRecord:
        self.ranks.move_to(float(step) if value is None else value)
        self.saver.begin(cast(Any, self.ranks), DriverState(iteration=step // 10, step=step, cursor=7 * step))
        return self.saver.end(cast(Any, self.ranks))

    def restore(self) -> int | None:
        """The step restored, whose state every rank then holds."""
        restored = self.saver.restore(cast(Any, self.ranks), self.told.append)
        if restored is None:
            return None
        assert restored.manifest.step == restored.state.step == self.ranks.value == self.saver.last_step
        assert restored.state.cursor == 7 * restored.state.step
        return restored.state.step

    def steps(self) -> list[int]:
        return Catalog(self.store).steps()


type Begin = Callable[..., Run]


@pytest.fixture
def begin(tmp_path: Path) -> Begin:
    """begin(**knobs): the run starts, again."""
    return lambda **knobs: Run(tmp_path / "checkpoints", **knobs)


@pytest.fixture
def saved(begin: Begin) -> Run:
    run = begin(keep_last=5)
    for step in (10, 20, 30):
        run.save(step)
    return run


def objects(run: Run, step: int, name: str) -> str:
    return f"{Catalog(run.store).load(step).prefix}/{name}"


def damage(run: Run, step: int, how: str) -> str:
    """Damage the checkpoint of `step`; the key of what is damaged."""
    name = {"index": "index.json", "small": "common.pt"}.get(how, "__1_0.distcp")
    key = manifest_key(step) if how in ("manifest", "empty manifest") else objects(run, step, name)
    data = run.store.get(key)
    if how == "missing":
        run.store.delete(key)
    else:
        changed = {"truncated": data[:-9], "empty": b"", "empty manifest": b"", "manifest": data[: len(data) // 2]}
        run.store.put(key, changed.get(how, data[:90] + bytes([data[90] ^ 4]) + data[91:]))
    return key


HOWS = ["missing", "truncated", "empty", "flipped", "index", "manifest", "empty manifest"]


@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_checkpoint_is_named_and_all_ranks_load_the_one_before(saved: Run, begin: Begin, how: str) -> None:
    key = damage(saved, 30, how)
    again = begin()
    assert again.saver.latest() is not None
    assert again.restore() == 20
    (told,) = again.told
    assert told.startswith("step 30: ") and key in told and told.endswith("; going back to step 20")
    assert again.steps() == [20, 10]


@pytest.mark.parametrize("how", HOWS)
def test_the_step_of_a_damaged_checkpoint_is_published_again_without_help(saved: Run, begin: Begin, how: str) -> None:
    damage(saved, 30, how)
    again = begin(keep_last=5)
    again.restore()
    again.save(30)
    assert again.steps() == [30, 20, 10] and again.saver.prune_error is None
    assert Catalog(again.store).verify(30, deep=True) == []
    third = begin()
    assert third.restore() == 30 and third.told == []


def test_several_damaged_ones_are_passed_over(saved: Run, begin: Begin) -> None:
    damage(saved, 30, "manifest")
    key = damage(saved, 20, "missing")
    again = begin()
    assert again.restore() == 10 and again.steps() == [10]
    assert [line.partition(":")[0] for line in again.told] == ["step 30", "step 20"] and key in again.told[1]


def test_where_all_are_damaged_nothing_is_touched_and_the_run_ends(saved: Run, begin: Begin) -> None:
    for step in (10, 20, 30):
        damage(saved, step, "missing")
    again = begin()
    with pytest.raises(CorruptCheckpoint, match=r"step 10: .*__1_0\.distcp.* missing; there is no older checkpoint"):
        again.restore()
    assert len(again.told) == 2 and again.steps() == [30, 20, 10]


@pytest.mark.parametrize("how", HOWS)
def test_without_fallback_the_error_names_object_and_remedy(saved: Run, begin: Begin, how: str) -> None:
    key = damage(saved, 30, how)
    again = begin(fallback=False)
    with pytest.raises(
        CorruptCheckpoint, match=r"step 30: .*; checkpoint\.fallback=true goes on from step 20"
    ) as caught:
        again.restore()
    assert key in str(caught.value) and again.told == [] and again.steps() == [30, 20, 10]


def test_what_no_rank_reads_does_not_make_a_checkpoint_unusable(saved: Run, begin: Begin) -> None:
    damage(saved, 30, "small")
    assert begin().restore() == 30


def test_a_whole_checkpoint_is_kept_though_a_rank_finds_fault(saved: Run, begin: Begin) -> None:
    again = begin()
    again.ranks.fails["load", 1] = CorruptCheckpoint("step-00000030/x: the object is missing")
    with pytest.raises(
        CorruptCheckpoint, match="x: the object is missing; read from here it is whole: every node must"
    ):
        again.restore()
    assert again.steps() == [30, 20, 10] and again.told == []
    assert again.restore() == 30


@pytest.mark.parametrize("error", [CheckpointError("shape"), PermissionDenied("no"), StorageError("down")])
def test_what_is_no_damage_ends_the_run(saved: Run, begin: Begin, error: Exception) -> None:
    again = begin()
    again.ranks.fails["load", 0] = error
    with pytest.raises(type(error), match=str(error)):
        again.restore()
    assert again.told == [] and again.steps() == [30, 20, 10]


def test_nothing_published_is_nothing_restored(begin: Begin) -> None:
    run = begin()
    assert run.restore() is None and run.ranks.calls == [] and run.saver.last_step is None


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("method", ["end_save", "begin_publish", "end_publish"])
def test_a_failed_save_leaves_the_old_one_even_where_one_is_kept(begin: Begin, rank: int, method: str) -> None:
    run = begin(keep_last=1)
    run.save(10)
    run.ranks.fails[method, rank] = StorageError("disk full")
    with pytest.raises(StorageError, match="disk full"):
        run.save(20)
    assert run.saver.pending is None
    again = begin(keep_last=1)
    if (method, rank) != ("end_publish", 1):  # rank 1 has no part in publishing: what it says comes too late
        assert again.restore() == 10
    again.save(20)
    assert again.steps() == [20] and again.restore() == 20


@pytest.mark.parametrize("method", ["end_save", "begin_publish", "end_publish"])
def test_a_save_that_a_fault_interrupts_stays_pending_so_that_it_is_made_again(begin: Begin, method: str) -> None:
    run = begin()
    broken = GenerationBroken((), "save.publish", run.ranks.roster)
    run.ranks.fails[method, 1] = broken
    with pytest.raises(GenerationBroken):
        run.save(10)
    assert run.saver.pending is not None
    run.saver.forget()
    run.save(10)
    assert run.steps() == [10]


def test_retention_counts_what_was_saved_before_a_restart(begin: Begin) -> None:
    first = begin(keep_last=2)
    for step in (10, 20, 30):
        first.save(step)
    again = begin(keep_last=2)
    assert again.restore() == 30
    for step in (40, 50, 60):
        again.save(step)
        assert len(again.steps()) == 2
    assert again.steps() == [60, 50]


def test_old_ones_go_behind_the_training_and_a_refusal_is_told_of_later(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate, delete = begin(keep_last=1, asynchronous=True), threading.Event(), LocalStore.delete

    def refuse(store: LocalStore, key: str) -> None:
        raise PermissionDenied("no")

    def slow(store: LocalStore, key: str) -> None:
        gate.wait(30)
        delete(store, key)

    run.save(10)
    monkeypatch.setattr(LocalStore, "delete", refuse)
    run.save(20)
    run.saver.settle()
    monkeypatch.setattr(LocalStore, "delete", slow)
    assert str(run.saver.prune_error) == "no" and run.steps() == [20, 10]
    run.save(30)
    assert run.steps() == [30, 20, 10], "the save has not waited"
    gate.set()
    assert run.restore() == 30 and run.steps() == [30] and run.saver.prune_error is None


def test_what_is_being_written_is_never_swept_however_old_it_looks(
    begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, gate, swept = begin(keep_last=1, asynchronous=True), threading.Event(), list[str]()
    steps = Catalog.published

    def late(catalog: Catalog) -> object:
        gate.wait(30)
        return steps(catalog)

    def sweep(store: LocalStore, prefix: str, older_than_s: float) -> int:
        swept.append(prefix)
        return 0

    monkeypatch.setattr(Catalog, "published", late)
    monkeypatch.setattr(LocalStore, "sweep_uploads", sweep)
    run.save(10)
    run.saver.begin(cast(Any, run.ranks), DriverState(iteration=2, step=20, cursor=140))
    gate.set()
    run.saver.settle()
    assert swept == [] and run.saver.prune_error is None
    run.saver.end(cast(Any, run.ranks))
    run.saver.settle()
    assert swept == ["step-"]


def test_a_sweep_that_does_not_end_holds_up_a_save_for_so_long_and_is_named(begin: Begin) -> None:
    run = begin(save_s=0.05)
    with run.saver._sweeping, pytest.raises(StorageError, match=r"checkpoint\.save_s=0\.05 s: see why"):
        run.save(10)
    assert run.saver.pending is None and run.ranks.calls == []
    run.save(10)
    assert run.steps() == [10]


def test_an_unreadable_older_one_does_not_stop_retention(saved: Run, begin: Begin) -> None:
    damage(saved, 20, "manifest")
    again = begin(keep_last=1)
    again.restore()
    again.save(40)
    assert again.saver.prune_error is None and again.steps() == [40, 20]


def test_a_whole_checkpoint_is_never_replaced(saved: Run) -> None:
    with pytest.raises(AlreadyExists, match="step 30 is published with other content"):
        saved.save(30, value=31.0)
    assert saved.restore() == 30


def test_one_save_writes_each_object_once(begin: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    run, written = begin(), list[str]()
    put, create = LocalStore.put, LocalStore.create

    def counted_put(store: LocalStore, key: str, data: Any, crc32: int | None = None) -> None:
        written.append(key)
        put(store, key, data, crc32)

    def counted_create(store: LocalStore, key: str, data: Any) -> None:
        written.append(key)
        create(store, key, data)

    monkeypatch.setattr(LocalStore, "put", counted_put)
    monkeypatch.setattr(LocalStore, "create", counted_create)
    run.save(10)
    assert sorted(written) == sorted(info.key for info in run.store.list())
    assert written[-1] == manifest_key(10)


def test_nothing_is_published_while_a_rank_writes(begin: Begin) -> None:
    run = begin()
    run.save(10)
    seen: list[Sequence[int]] = []
    write = run.ranks.ranks[1].end_save

    def slow() -> Any:
        seen.append(run.steps())
        return write()

    run.ranks.ranks[1].end_save = slow  # type: ignore[method-assign]
    run.save(20)
    assert seen == [[10]] and run.steps() == [20, 10]
