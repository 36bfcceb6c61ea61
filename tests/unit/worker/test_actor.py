"""What an actor's beacon shows between two calls, and what of a trial is left once a slot is wanted."""

from types import SimpleNamespace
from typing import Any

import pytest

from ftppo.errors import StaleGeneration, StorageError, WorkerError
from ftppo.worker.actor import Stamp, TrainActor
from ftppo.worker.beacon import Progress
from ftppo.worker.meeting import Rendezvous


class Engine:
    """Works in a phase, and then ends as it is told to."""

    def __init__(self) -> None:
        self.progress, self.slot = Progress(), 1
        self.memory = SimpleNamespace(delivered=None)
        self.durable = SimpleNamespace(idle=True)
        self.pace, self.aborted = SimpleNamespace(take=lambda: None), False

    def rollout(self, error: Exception | None) -> str:
        self.progress.enter("rollout", 3)
        self.progress.tick()
        if error is not None:
            raise error
        return self.progress.phase

    def join(self, *_: Any) -> None: ...

    def abort(self) -> None:
        self.aborted = True

    def release(self) -> int:
        return 0


class Trial:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def abandon(self) -> None:
        self.calls.append("abandon")

    def run(self, *_: Any) -> bool:
        self.calls.append("run")
        return True


@pytest.fixture
def actor() -> Any:
    """As it is after `prepare`, in generation 0; without Ray."""
    plain: Any = TrainActor.__ray_metadata__.modified_class  # type: ignore[attr-defined]
    found = object.__new__(plain)
    found.generation, found.broken, found.leaving, found.results = 0, False, False, {}
    found.engine, found.trial = Engine(), Trial()
    found.engine.device = None
    return found


@pytest.mark.parametrize("error", [None, StorageError("refused"), ValueError("bad")])
def test_who_has_done_its_part_is_idle(actor: Any, error: Exception | None) -> None:
    stamp = Stamp(generation=0, wanted=True)
    if error is None:
        assert actor.call(stamp, "rollout", None).result == "rollout"
    else:
        with pytest.raises(StorageError if isinstance(error, StorageError) else WorkerError):
            actor.call(stamp, "rollout", error)
    assert actor.engine.progress.phase == "idle" and not actor.busy


def test_a_trial_that_meets_a_generation_ends_whoever_comes_first(actor: Any) -> None:
    with pytest.raises(InterruptedError):
        actor.try_together(None, 0, 2, 1.0)
    actor.broken = True  # it stands by again
    assert actor.try_together(None, 0, 2, 1.0)
    actor.trial.calls.clear()
    actor.trial.run = lambda *_: actor.join(Rendezvous(1, "", 0), None, 1.0)
    actor.try_together(None, 0, 2, 1.0)
    assert actor.trial.calls == ["begin", "abandon"] and actor.generation == 1


def test_a_generation_that_is_aborted_is_asked_for_nothing_more(actor: Any) -> None:
    actor.abort(0)
    assert not actor.engine.aborted and not actor.broken, "a word that comes late is of a generation before"
    actor.abort(1)
    assert actor.engine.aborted
    with pytest.raises(StaleGeneration):
        actor.call(Stamp(generation=0, wanted=True), "rollout", None)
    actor.join(Rendezvous(1, "", 0), None, 1.0)
    assert actor.call(Stamp(generation=1, wanted=True), "rollout", None).result == "rollout"
