"""Who leaves between two steps, and with which words; who is still well stays while there is nobody for its slot."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftppo.clock import FakeClock
from ftppo.driver.departures import Departures
from ftppo.driver.display import Display
from ftppo.driver.mesh import GenerationBroken, Mesh
from ftppo.driver.runfiles import RunFiles
from ftppo.driver.standbys import Standbys
from ftppo.driver.stragglers import Stragglers
from ftppo.plan.faults import judge
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout, buddies

LAYOUT = Layout(dp=2, tp=2)
VERSION = 7
NODES = {"a0": "n0", "a1": "n0", "a2": "n1", "a3": "n1"}


class World:
    """Four slots on two nodes, `num_warm` standbys on a third one."""

    def __init__(self, num_warm: int, draining: dict[str, float | None], slow: list[dict[int, float]]) -> None:
        self.calls: list[str] = []
        self.num_warm, self.num_dead = num_warm, 0  # standbys, and those of them that have died unnoticed
        self.events: list[tuple[str, str]] = []
        pool = SimpleNamespace(
            draining=lambda: draining, promotable=lambda: [f"s{n}" for n in range(self.num_warm)], node_of=NODES.get
        )
        files = SimpleNamespace(record=lambda event, reason: self.events.append((event, reason)))
        display = SimpleNamespace(event=lambda text: None)
        stragglers = SimpleNamespace(to_go=lambda roster: slow)
        self.own = Departures(
            cast(Standbys, SimpleNamespace(pool=pool, knock=self._knock)),
            cast(Stragglers, stragglers),
            cast(RunFiles, files),
            cast(Display, display),
            FakeClock(),
        )
        mesh = SimpleNamespace(
            roster=Roster(0, LAYOUT, tuple(NODES)), leaving=set(), buddy_of=buddies(LAYOUT, dict(enumerate("0011")))
        )
        mesh.call = lambda method, version, phase: self.calls.append(f"{method} {version}")
        self.mesh = cast(Mesh, mesh)

    def _knock(self) -> None:
        self.num_warm, self.num_dead = self.num_warm - self.num_dead, 0

    def reasons(self) -> list[str]:
        """What is said of those that go now."""
        assert self.own.due(self.mesh)
        with pytest.raises(GenerationBroken) as broken:
            self.own.run_if_due(self.mesh, VERSION)
        assert self.calls == [f"hand_over {VERSION}"], "buddies must have the newest copies first"
        assert broken.value.in_order
        return [f"{one.kind}: {one.reason}" for one in judge(broken.value.observations, layout=LAYOUT, hang_s=1.0)]


def world(num_warm: int = 2, draining: dict[str, float | None] | None = None, slow: Any = ()) -> World:
    return World(num_warm, draining or {}, list(slow))


def test_nobody_goes_without_a_reason() -> None:
    calm = world()
    assert not calm.own.due(calm.mesh)
    calm.own.run_if_due(calm.mesh, VERSION)
    assert calm.calls == [] and calm.events == []


def test_all_slots_of_a_node_that_is_about_to_go_leave_it() -> None:
    found = world(draining={"n1": 90.0})
    said = found.reasons()
    assert [one.partition(":")[0] for one in said] == ["preempted"] * 2
    assert [one.endswith("told to leave: its node is about to go") for one in said] == [True] * 2
    assert found.events == [("node_draining", "node n1 is about to go in 90 s, with slots 2, 3")]


def test_they_stay_until_there_are_standbys_for_all_of_them() -> None:
    short = world(num_warm=1, draining={"n1": None})
    for _ in range(3):
        assert not short.own.due(short.mesh)
    (event,) = short.events
    assert event[1] == "node n1 is about to go, with slots 2, 3; they stay until 2 standbys elsewhere are warm"


def test_a_standby_that_has_died_is_not_counted_on() -> None:
    found = world(num_warm=2, draining={"n1": None})
    found.num_dead = 1
    assert found.own.due(found.mesh)
    found.own.run_if_due(found.mesh, VERSION)
    assert found.calls == [] and not found.own.due(found.mesh)


def test_without_snapshots_only_those_go_that_must() -> None:
    found = world(draining={"n1": None}, slow=[dict.fromkeys((0, 1), 2.5)])
    found.mesh.buddy_of = {}
    assert not found.own.due(found.mesh)
    found.mesh.leaving = {3}
    assert found.reasons() == ["preempted: slot 3 (dp 1, tp 1): told to leave"]


def test_a_node_without_slots_is_no_news() -> None:
    other = world(draining={"n9": None})
    assert not other.own.due(other.mesh) and other.events == []


def test_who_was_told_by_a_signal_goes_with_or_without_a_standby() -> None:
    told = world(num_warm=0)
    told.mesh.leaving = {1}
    assert told.reasons() == ["preempted: slot 1 (dp 0, tp 1): told to leave"]


def test_a_straggler_goes_for_its_slowness_and_after_those_that_must() -> None:
    slow = [dict.fromkeys((0, 1), 2.5)]
    assert world(slow=slow).reasons()[0] == (
        "straggler: slot 0 (dp 0, tp 0): its replica takes 2.5 times as long as the others"
    )
    both = world(num_warm=2, draining={"n1": None}, slow=slow)
    assert [one.split(" (")[0] for one in both.reasons()] == ["preempted: slot 2", "preempted: slot 3"]
