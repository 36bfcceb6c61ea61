"""Standbys try in pairs while nobody wants them; who is to blame is ended for good, who has died is made up for."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray

from ftppo.clock import FakeClock
from ftppo.config import Cluster, Config
from ftppo.driver import trials as module
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.trials import AGAIN_S, SILENT, StandbyTrials
from ftppo.plan.trials import ATTEMPTS

LIMIT_S = 5.0


class Reference:
    """What an actor will answer; `value` may be an error to raise, and None is no answer yet."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Fleet:
    """Warm standbys by name. `answers` says what one answers to a trial: True unless told otherwise."""

    def __init__(self, *names: str) -> None:
        self.warm, self.answers = list(names), dict[str, Any]()
        self.host_opens = True
        self.ended: list[tuple[str, bool]] = []
        self.cluster, self.config = SimpleNamespace(kind="cpu"), Config()
        self.members = {name: SimpleNamespace(handle=self._handle(name)) for name in names}

    def promotable(self) -> list[str]:
        return list(self.warm)

    def retire(self, name: str, for_good: bool) -> None:
        self.warm.remove(name)
        self.ended.append((name, for_good))

    def _handle(self, name: str) -> Any:
        opened = SimpleNamespace(remote=lambda *_: Reference("meet" if self.host_opens else None))
        tried = SimpleNamespace(remote=lambda *_: Reference(self.answers.get(name, True)))
        return SimpleNamespace(open_trial=opened, try_together=tried)


@pytest.fixture(autouse=True)
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def wait(references: list[Reference], **_: Any) -> tuple[list[Reference], list[Reference]]:
        answered = [one for one in references if one.value is not None]
        return answered, [one for one in references if one.value is None]

    def get(asked: Any) -> Any:
        if isinstance(asked, list):
            return [get(one) for one in asked]
        if isinstance(asked.value, Exception):
            raise asked.value
        return asked.value

    monkeypatch.setattr(module.ray, "wait", wait)
    monkeypatch.setattr(module.ray, "get", get)


class World:
    """A fleet whose standbys try, and what is said of it."""

    def __init__(self, *names: str, gpus_per_actor: float | None = None) -> None:
        self.fleet, self.clock, self.events = Fleet(*names), FakeClock(), list[tuple[str, str]]()
        if gpus_per_actor is not None:
            self.fleet.cluster.kind = "cuda"
            self.fleet.config = Config(cluster=Cluster(gpus_per_actor=gpus_per_actor))
        files = SimpleNamespace(record=lambda event, reason: self.events.append((event, reason)))
        display = SimpleNamespace(event=lambda text: None)
        self.own = StandbyTrials(
            cast(Pool, self.fleet), cast(RunFiles, files), cast(Display, display), self.clock, LIMIT_S
        )

    def pass_time(self, seconds: float = 20.0) -> None:
        for _ in range(int(seconds / AGAIN_S)):
            self.own.tend()
            self.own.tend()
            self.clock.advance(AGAIN_S)


def test_all_try_and_nobody_tries_twice() -> None:
    world = World("a", "b", "c")
    world.pass_time()
    assert world.events == [
        ("standbys_tried", "a with b: the sum is right"),
        ("standbys_tried", "a with c: the sum is right"),
    ]
    assert world.fleet.ended == []


@pytest.mark.parametrize(("gpus", "num"), [(1.0, 1), (0.5, 0)])
def test_those_that_share_a_gpu_do_not_try(gpus: float, num: int) -> None:
    world = World("a", "b", gpus_per_actor=gpus)
    world.pass_time()
    assert len(world.events) == num


def test_one_alone_is_left_in_peace() -> None:
    world = World("a")
    world.pass_time()
    assert world.events == []


@pytest.mark.parametrize("answer", [False, ray.exceptions.RaySystemError("connection closed")])
def test_whose_sums_are_wrong_with_everybody_is_ended_for_good(answer: Any) -> None:
    world = World("a", "b", "c")
    world.fleet.answers["b"] = answer
    world.pass_time()
    assert world.fleet.ended == [("b", True)]
    assert world.events[-1] == (
        "standby_failed",
        "b: an all-reduce with it fails, and not with others; its device is not used again",
    )


def test_of_two_that_fail_both_stay() -> None:
    world = World("a", "b")
    world.fleet.answers["b"] = False
    world.pass_time()
    assert world.fleet.ended == [] and len(world.events) == ATTEMPTS


def test_who_has_died_is_made_up_for_and_not_blamed() -> None:
    world = World("a", "b", "c")
    world.fleet.answers["b"] = ray.exceptions.RayActorError()
    world.pass_time()
    assert world.fleet.ended == [("b", False)]
    assert ("standbys_tried", "a with c: the sum is right") in world.events


def test_who_raises_for_want_of_a_dead_partner_has_not_died() -> None:
    world = World("a", "b")
    died = ray.exceptions.ActorDiedError()
    raised = ray.exceptions.RayTaskError("try_together", "", died).as_instanceof_cause()
    world.fleet.answers = {"a": died, "b": raised}
    world.pass_time()
    assert world.fleet.ended == [("a", False)]


def test_a_trial_that_somebody_gave_up_is_no_failure() -> None:
    world = World("a", "b", "c")
    given_up = InterruptedError("given up: there is other work")
    world.fleet.answers["b"] = ray.exceptions.RayTaskError("try_together", "", given_up).as_instanceof_cause()
    world.pass_time(2 * ATTEMPTS * AGAIN_S)
    assert world.events == []
    del world.fleet.answers["b"]
    world.pass_time()
    assert world.fleet.ended == [] and len(world.events) == 2


@pytest.mark.parametrize(("opens", "silent"), [(True, "b"), (False, "a")])
def test_who_says_nothing_is_ended_when_its_time_is_over(opens: bool, silent: str) -> None:
    world = World("a", "b")
    world.fleet.host_opens = opens
    world.fleet.answers = (
        {"b": None} if opens else {"a": None, "b": None}
    )  # nobody can come to a place that is not there
    world.pass_time(SILENT * LIMIT_S - 1)
    assert world.fleet.ended == []
    world.pass_time(2)
    assert world.fleet.ended == [(silent, True)]


def test_who_is_stuck_with_one_that_died_is_not_blamed() -> None:
    world = World("a", "b")
    world.fleet.answers = {"a": ray.exceptions.ActorDiedError(), "b": None}
    world.pass_time(SILENT * LIMIT_S + 2)
    assert world.fleet.ended == [("a", False), ("b", False)]


def test_of_two_that_are_stuck_together_nobody_is_blamed() -> None:
    world = World("a", "b")
    world.fleet.answers = {"a": None, "b": None}
    world.pass_time(SILENT * LIMIT_S + 2)
    assert world.fleet.ended == [("a", False), ("b", False)]


def test_a_trial_of_one_that_is_wanted_counts_for_nothing() -> None:
    world = World("a", "b")
    world.fleet.answers = {"a": False, "b": False}
    world.own.tend()
    world.fleet.warm.remove("b")
    world.pass_time()
    assert world.events == [] and world.fleet.ended == []
