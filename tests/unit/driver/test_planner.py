"""What becomes of a plan that has to wait, of a run whose budget is spent, and of who leaves and works."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from ftppo.clock import FakeClock
from ftppo.config import Config, Parallel, Recovery
from ftppo.driver.planner import POLL_S, Planner
from ftppo.errors import ClusterError, NotEnoughStandbys, RepeatedFault, TooManyRecoveries
from ftppo.plan.faults import Fault, FaultKind, Leave
from ftppo.plan.recovery import Shrink, Substitute
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import DriverState

ROSTER = Roster(3, Layout(dp=2), ("a0", "a1"), ("s0",))
CRASH = Fault(1, FaultKind.CRASH, "slot 1: process died")
LEAVES = Fault(1, FaultKind.PREEMPTED, "slot 1: told to leave", Leave.TOLD)


class World:
    """Two slots and a standby, warm or not, which `tend` does not change but by the time that it takes."""

    def __init__(self, warm: bool = True, **recovery: Any) -> None:
        self.clock, self.events = FakeClock(), list[str]()
        member = SimpleNamespace(built_for=None)
        self.members = dict.fromkeys(ROSTER.actors, member)
        self.warm = ["s0"] if warm else []
        self.knocked = 0
        pool = SimpleNamespace(members=self.members, warm=self.warm, promotable=lambda: self.warm, retire=self.retire)
        standbys = SimpleNamespace(knock=self._knock, begin=lambda roster: None, tend=self._tend)
        files = SimpleNamespace(record=lambda event, reason: self.events.append(f"{event} {reason}"))
        display = SimpleNamespace(event=lambda text: None, phase=lambda name, detail: None)
        config = Config(parallel=Parallel(dp=2), recovery=Recovery(**recovery))
        self.own = Planner(
            config, cast(Any, pool), cast(Any, standbys), cast(Any, files), cast(Any, display), self.clock
        )

    def retire(self, name: str) -> None:
        self.members.pop(name, None)
        if name in self.warm:
            self.warm.remove(name)

    def plan(self, *faults: Fault, in_order: bool = False) -> Any:
        return self.own.plan(ROSTER, faults, in_order, in_memory=True, has_checkpoint=False)

    def _knock(self) -> None:
        self.knocked += 1

    def _tend(self, roster: Roster, timeout_s: float) -> Roster:
        self.clock.advance(timeout_s)
        return roster


def test_who_is_lost_is_retired_and_who_leaves_and_works_is_not() -> None:
    lost, leaves = World(), World()
    assert lost.plan(CRASH).takers == {1: "s0"} and "a1" not in lost.members
    assert leaves.plan(LEAVES, in_order=True).takers == {1: "s0"} and "a1" in leaves.members
    assert lost.knocked == leaves.knocked == 1


@pytest.mark.parametrize("when_short", ["shrink", "fail", "wait"])
def test_a_promise_that_is_not_kept_is_waited_for_so_long(when_short: str) -> None:
    world = World(warm=False, when_short=when_short, standby_s=10.0)
    error = {"fail": NotEnoughStandbys, "wait": ClusterError}.get(when_short)
    if error is None:
        assert isinstance(world.plan(CRASH), Shrink)
    else:
        with pytest.raises(error, match="slot 1: process died"):
            world.plan(CRASH)
    assert world.events == ["standby_failed s0: not warm within recovery.standby_s=10 s"]
    assert "s0" not in world.members
    assert 10.0 <= world.clock.monotonic() - FakeClock().monotonic() <= 10.0 + POLL_S


def test_recoveries_are_counted_where_something_went_wrong() -> None:
    world = World(max_recoveries=1, max_per_hour=0)
    for _ in range(3):
        assert isinstance(world.plan(LEAVES, in_order=True), Substitute)
        assert isinstance(world.plan(in_order=True), Substitute)
    assert isinstance(world.plan(CRASH), Substitute)
    assert isinstance(world.plan(LEAVES, in_order=True), Substitute), "a spent budget is no reason to end a sound run"
    with pytest.raises(TooManyRecoveries, match="max_recoveries=1"):
        world.plan()


def test_a_kind_has_a_budget_by_the_hour() -> None:
    world = World(max_per_hour=1)
    world.plan(CRASH)
    world.plan(Fault(0, FaultKind.HANG, "slot 0: stands still"))
    with pytest.raises(TooManyRecoveries, match="2 times crash within an hour"):
        world.plan(CRASH)
    world.clock.advance(3600.0)
    world.plan(CRASH)


def test_what_was_raised_in_a_step_is_remembered_over_other_faults() -> None:
    own, state = World().own, DriverState(step=4)
    raised = [Fault(slot, FaultKind.EXCEPTION, f"slot {slot}: ValueError in score: bad") for slot in (0, 1)]
    own.refuse_repetition(raised[:1], state)
    own.refuse_repetition([CRASH], state)
    with pytest.raises(RepeatedFault, match="bad"):
        own.refuse_repetition(raised[1:], state)
    own.refuse_repetition(raised[1:], DriverState(step=5))


def test_who_is_told_to_leave_makes_room_where_nobody_else_could_come() -> None:
    enough, short = World(), World()
    enough.own.make_room(ROSTER, [LEAVES])
    assert "a1" in enough.members
    short.retire("s0")
    short.own.make_room(ROSTER, [CRASH])
    assert "a1" in short.members, "who is lost is retired by the plan"
    short.own.make_room(ROSTER, [LEAVES])
    assert "a1" not in short.members
