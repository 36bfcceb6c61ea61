"""Rosters and their generations."""

import pickle

import pytest

from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout


@pytest.fixture
def roster() -> Roster:
    return Roster(3, Layout(2, 2), ("a", "b", "c", "d"), ("s", "t"))


def test_who_is_where(roster: Roster) -> None:
    assert roster.actor(2) == "c" and roster.slot_of("c") == 2
    assert roster.slot_of("s") is None and roster.slot_of("nobody") is None
    assert roster.stands_by("s") and not roster.stands_by("a")
    assert roster.actors == ("a", "b", "c", "d", "s", "t")


def test_replace_is_the_next_generation_and_leaves_the_old_as_it_was(roster: Roster) -> None:
    after = roster.replace({1: "t"})
    assert after == Roster(4, Layout(2, 2), ("a", "t", "c", "d"), ("s",))
    assert after.slot_of("b") is None and after.slot_of("t") == 1
    assert roster.slots == ("a", "b", "c", "d") and roster.generation == 3
    assert roster.replace({}) == Roster(4, Layout(2, 2), roster.slots, roster.standby)


def test_standbys_come_and_go_within_a_generation(roster: Roster) -> None:
    assert roster.with_standby(["u"]).standby == ("s", "t", "u")
    assert roster.without_standby(["s", "gone already"]).standby == ("t",)
    assert roster.with_standby(["u"]).generation == roster.without_standby(["s"]).generation == 3


def test_a_roster_survives_pickling(roster: Roster) -> None:
    again = pickle.loads(pickle.dumps(roster))
    assert again == roster and again.slot_of("d") == 3


def test_broken_rosters_are_refused(roster: Roster) -> None:
    for slots, standby in ((("a", "b", "c"), ()), (("a", "b", "c", "a"), ()), (("a", "b", "c", "d"), ("a",))):
        with pytest.raises(AssertionError):
            Roster(0, Layout(2, 2), slots, standby)
    for takers in ({0: "b"}, {4: "s"}, {0: "s", 1: "s"}, {0: "stranger"}):
        with pytest.raises(AssertionError):
            roster.replace(takers)
