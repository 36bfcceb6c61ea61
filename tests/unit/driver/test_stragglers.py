"""Who is slow is looked at every so many steps of one generation, told once, and handed on where that is wanted."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftppo.config import Config, Recovery
from ftppo.driver.display import Display
from ftppo.driver.mesh import Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.stragglers import Stragglers
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import Work

STEPS = 4


class Told:
    """Files and a display that hear of events and shares."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.found: list[list[float]] = []

    def record(self, event: str, reason: str) -> None:
        self.reasons.append(reason)

    def shares(self, shares: list[float]) -> None:
        self.found.append(shares)

    def event(self, text: str) -> None: ...


@pytest.fixture
def told() -> Told:
    return Told()


def watch(told: Told, **keys: Any) -> Stragglers:
    config = Config(recovery=Recovery(straggler_steps=STEPS, **keys))
    return Stragglers(config, cast(RunFiles, told), cast(Display, told))


def mesh(*seconds: float, layout: Layout | None = None, generation: int = 0, tokens: int = 100) -> Mesh:
    layout = layout or Layout(dp=len(seconds))
    roster = Roster(generation, layout, tuple(f"a{slot}" for slot in range(layout.world)))
    work = {slot: Work(each, tokens) for slot, each in enumerate(seconds)}
    return cast(Mesh, SimpleNamespace(roster=roster, work=work))


def do(own: Stragglers, mesh: Mesh, num_steps: int = STEPS) -> None:
    for _ in range(num_steps):
        own.step_done(mesh)


def test_a_straggler_is_told_once(told: Told) -> None:
    own = watch(told)
    do(own, mesh(1.0, 2.0), STEPS - 1)
    assert told.reasons == []
    do(own, mesh(1.0, 2.0), 2 * STEPS)
    (said,) = told.reasons
    assert said == "slot 1 (dp 1) takes 2.0 times as long for its own work as the others (median of 4 steps)"
    assert told.found == [[0.5, 2.0]] * 2


def test_a_replica_of_several_slots_is_told_as_one(told: Told) -> None:
    do(watch(told), mesh(3.0, 3.0, 1.0, 1.0, layout=Layout(dp=2, tp=2)))
    (said,) = told.reasons
    assert said.startswith("dp 0 (slots 0, 1) takes 3.0 times as long")


def test_who_works_on_more_tokens_may_take_longer(told: Told) -> None:
    uneven = mesh(1.0, 2.0)
    uneven.work[1] = Work(2.0, 200)
    do(watch(told), uneven)
    assert told.reasons == [] and told.found == [[1.0, 1.0]]


def test_steps_of_another_generation_do_not_count(told: Told) -> None:
    own = watch(told)
    do(own, mesh(1.0, 2.0), STEPS - 1)
    do(own, mesh(1.0, 2.0, generation=1), STEPS - 1)
    assert told.found == []


@pytest.mark.parametrize(("keys", "layout"), [({"straggler_ratio": 0.0}, Layout(dp=2)), ({}, Layout(tp=2))])
def test_without_a_ratio_or_peers_nothing_is_told(told: Told, keys: dict[str, Any], layout: Layout) -> None:
    do(watch(told, **keys), mesh(1.0, 9.0, layout=layout))
    assert told.reasons == [] and told.found == []


def test_stragglers_go_only_where_that_is_wanted(told: Told) -> None:
    slow = mesh(1.0, 4.0, 1.0, 2.0)
    for wanted in (False, True):
        own = watch(told, replace_stragglers=wanted)
        do(own, slow)
        assert own.to_go(slow.roster) == ([{1: 4.0}, {3: 2.0}] if wanted else [])
    assert own.to_go(mesh(1.0, 4.0, 1.0, 2.0, generation=1).roster) == [], "its slots may be another's by now"
    do(own, mesh(1.0, 1.0, 1.0, 1.0))
    assert own.to_go(slow.roster) == [], "it has come right"
