"""Plans, and the reasons that they give."""

from typing import Any

import pytest

from ftppo.errors import NotEnoughStandbys, TooManyRecoveries
from ftppo.plan.faults import NO_SLOT, Fault, FaultKind, Leave
from ftppo.plan.recovery import GiveUp, Grow, Plan, Shrink, Substitute, Wait, plan_recovery
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout

LAYOUT = Layout(dp=4, tp=2)
ROSTER = Roster(5, LAYOUT, tuple(f"a{slot}" for slot in range(8)), ("s0", "s1"))
NONE_BY = ROSTER.without_standby(ROSTER.standby)


def crashes(*slots: int) -> list[Fault]:
    return [Fault(slot, FaultKind.CRASH, f"slot {slot}: process died") for slot in slots]


def plan(roster: Roster, faults: list[Fault], **changed: Any) -> Plan:
    arguments: dict[str, Any] = {"when_short": "fail", "has_checkpoint": True} | changed
    warm = arguments.pop("warm", roster.standby)
    return plan_recovery(roster, faults, warm, **arguments)


def test_standbys_take_exactly_the_lost_slots() -> None:
    found = plan(ROSTER, crashes(6, 1))
    assert isinstance(found, Substitute)
    assert found.takers == {1: "s0", 6: "s1"}
    assert found.roster == Roster(6, LAYOUT, ("a0", "s0", "a2", "a3", "a4", "a5", "s1", "a7"))
    assert "slot 6: process died" in found.reason and "s1 takes slot 6" in found.reason
    again = plan(ROSTER, crashes(1, 6))
    assert isinstance(again, Substitute) and (again.takers, again.roster) == (found.takers, found.roster)


def test_only_warm_standbys_are_used_and_the_others_stay() -> None:
    found = plan(ROSTER, crashes(0), warm=("s1",))
    assert isinstance(found, Substitute)
    assert found.takers == {0: "s1"} and found.roster.standby == ("s0",)


def test_without_a_lost_slot_the_same_actors_rebuild() -> None:
    for faults in ([], [Fault(NO_SLOT, FaultKind.DRIVER_LOST, "the driver is gone")]):
        found = plan(NONE_BY, faults)
        assert isinstance(found, Substitute)
        assert not found.takers and found.roster.slots == ROSTER.slots and found.roster.generation == 6


def test_two_faults_of_one_slot_need_one_standby() -> None:
    found = plan(ROSTER, crashes(2, 2), warm=("s0",))
    assert isinstance(found, Substitute) and found.takers == {2: "s0"}


@pytest.mark.parametrize(
    ("holders", "has_checkpoint", "source"),
    [
        (dict.fromkeys(range(8), True), True, "peer"),
        (dict.fromkeys(range(8), True) | {3: False}, True, "checkpoint"),
        (dict.fromkeys(range(7), True), True, "checkpoint"),
        (None, True, "checkpoint"),
        (None, False, "initial"),
        ({}, False, "initial"),
    ],
)
def test_the_state_comes_from_the_cheapest_place_that_has_all_of_it(
    holders: dict[int, bool] | None, has_checkpoint: bool, source: str
) -> None:
    found = plan(ROSTER, crashes(0), holders=holders, has_checkpoint=has_checkpoint)
    assert isinstance(found, Substitute) and found.source == source and source in found.reason


def test_when_short_it_fails_and_says_what_to_change() -> None:
    found = plan(ROSTER, crashes(0, 1, 2))
    assert isinstance(found, GiveUp) and isinstance(found.error, NotEnoughStandbys)
    assert "3 slots lost, 2 standbys warm" in str(found.error) and "cluster.standby" in str(found.error)


def test_when_short_it_waits_for_as_many_as_are_missing() -> None:
    found = plan(ROSTER, crashes(0, 1, 2), when_short="wait")
    assert isinstance(found, Wait) and found.missing == 1


@pytest.mark.parametrize("when_short", ["fail", "wait", "shrink"])
def test_a_promised_standby_is_waited_for(when_short: str) -> None:
    found = plan(ROSTER, crashes(0, 1), warm=("s0",), when_short=when_short)
    assert isinstance(found, Wait) and found.missing == 1 and "promised" in found.reason


def test_the_spent_budget_ends_the_run_and_the_reason_names_the_fault() -> None:
    found = plan(ROSTER, crashes(0), refused="none is left of recovery.max_recoveries")
    assert isinstance(found, GiveUp) and isinstance(found.error, TooManyRecoveries)
    assert "slot 0: process died" in found.reason and "recovery.max_recoveries" in found.reason


def test_shrinking_drops_the_replicas_that_lost_a_slot() -> None:
    found = plan(NONE_BY, crashes(0, 5), when_short="shrink")  # replicas 0 and 2
    assert isinstance(found, Shrink)
    assert found.dropped == (0, 2)
    assert found.roster == Roster(6, Layout(2, 2), ("a2", "a3", "a6", "a7"), ("a1", "a4"))
    assert "(4, 2, 1, 1) becomes (2, 2, 1, 1)" in found.reason


def test_shrinking_keeps_each_place_within_the_replica() -> None:
    layout = Layout(2, 2, 2, 2)
    roster = Roster(0, layout, tuple(f"a{slot}" for slot in range(16)))
    found = plan(roster, crashes(0), when_short="shrink")
    assert isinstance(found, Shrink)
    for slot, actor in enumerate(found.roster.slots):
        old, new = layout.coordinate(int(actor[1:])), found.roster.layout.coordinate(slot)
        assert (old.tp, old.pp, old.cp, old.dp) == (new.tp, new.pp, new.cp, 1)


def leaves(how: Leave, *slots: int) -> list[Fault]:
    return [Fault(slot, FaultKind.PREEMPTED, f"slot {slot}: told to leave", how) for slot in slots]


def test_who_leaves_for_the_better_stays_where_standbys_are_short() -> None:
    found = plan(ROSTER, leaves(Leave.BETTER, 0, 1), warm=("s0",))
    assert isinstance(found, Substitute) and found.takers == {} and found.roster.slots == ROSTER.slots
    enough = plan(ROSTER, leaves(Leave.BETTER, 0, 1))
    assert isinstance(enough, Substitute) and enough.takers == {0: "s0", 1: "s1"}
    mixed = plan(ROSTER, crashes(3) + leaves(Leave.BETTER, 0, 1))
    assert isinstance(mixed, Substitute) and mixed.takers == {3: "s0"}


def test_who_was_told_to_goes_as_if_lost() -> None:
    assert isinstance(plan(NONE_BY, leaves(Leave.TOLD, 0)), GiveUp)
    shrunk = plan(NONE_BY, leaves(Leave.TOLD, 0), when_short="shrink")
    assert isinstance(shrunk, Shrink) and "a0" not in shrunk.roster.actors


def test_where_every_replica_is_hit_one_is_made_of_the_survivors() -> None:
    roster = Roster(0, Layout(2, 2), ("a0", "a1", "a2", "a3"))
    found = plan(roster, crashes(1, 2), when_short="shrink")
    assert isinstance(found, Shrink)
    assert found.roster.slots == ("a0", "a3") and found.roster.standby == ()
    with_standby = plan(roster.with_standby(["s"]), crashes(1, 2), when_short="shrink")
    assert isinstance(with_standby, Shrink)
    assert with_standby.roster.slots == ("a0", "s") and with_standby.roster.standby == ("a3",)


def test_what_cannot_shrink_gives_up() -> None:
    found = plan(Roster(0, Layout(1, 2), ("a0", "a1")), crashes(0), when_short="shrink")
    assert isinstance(found, GiveUp) and isinstance(found.error, NotEnoughStandbys)
    assert "no whole replica of 2" in found.reason and "cluster.standby" in found.reason


def test_a_cold_standby_stays_one_through_a_shrink() -> None:
    found = plan(ROSTER, crashes(0, 2, 4), warm=("s0",), when_short="shrink")
    assert isinstance(found, Shrink)
    assert found.roster.slots == ("a6", "a7") and found.roster.standby == ("s0", "s1", "a1", "a3", "a5")


def test_long_lists_of_reasons_are_cut() -> None:
    found = plan(NONE_BY, crashes(*range(8)))
    assert isinstance(found, GiveUp) and "slot 2" in found.reason and "slot 3" not in found.reason
    assert "and 5 more" in found.reason


SMALL = Roster(7, Layout(dp=2, tp=2), ("a0", "a1", "a2", "a3"), ("s0", "s1", "s2", "s3"))


def test_a_mesh_that_shrank_grows_by_the_replicas_that_standbys_make_up() -> None:
    found = plan(SMALL, [], warm=("s0", "s1", "s3"), wanted_dp=4)
    assert isinstance(found, Grow)
    assert found.roster == Roster(8, Layout(dp=3, tp=2), ("a0", "a1", "a2", "a3", "s0", "s1"), ("s2", "s3"))
    assert found.takers == {4: "s0", 5: "s1"} and "(2, 2, 1, 1) becomes (3, 2, 1, 1)" in found.reason
    whole = plan(SMALL, [], wanted_dp=4)
    assert isinstance(whole, Grow) and whole.roster.layout == LAYOUT and whole.roster.standby == ()
    more = plan(SMALL, [], wanted_dp=3)
    assert isinstance(more, Grow) and more.roster.layout.dp == 3


def test_growing_keeps_each_place_within_the_replica() -> None:
    layout = Layout(dp=1, tp=2, pp=2)
    found = plan(Roster(0, layout, ("a", "b", "c", "d"), ("s", "t", "u", "v")), [], wanted_dp=2)
    assert isinstance(found, Grow)
    larger = found.roster.layout
    kept = [found.roster.actor(slot) for slot in larger.dp_replica(0)]
    assert kept == ["a", "b", "c", "d"] and sorted(found.takers) == sorted(larger.dp_replica(1))


def test_nothing_grows_while_something_is_lost_or_missing() -> None:
    lost = plan(SMALL, crashes(1), wanted_dp=4)
    assert isinstance(lost, Substitute) and lost.roster.layout == SMALL.layout
    for roster, warm, wanted in ((SMALL, ("s0",), 4), (SMALL, SMALL.standby, 2), (ROSTER, ROSTER.standby, 4)):
        found = plan(roster, [], warm=warm, wanted_dp=wanted)
        assert isinstance(found, Substitute) and found.roster.slots == roster.slots
