"""Who moves at a boundary: whom there are standbys for, and nobody together with the keeper of its copy."""

from ftppo.plan.departures import going
from ftppo.plan.topology import Layout, buddies

APART = {0: 2, 2: 0, 1: 3, 3: 1}  # as of two replicas of two slots


def test_who_was_told_goes_whether_or_not_there_is_a_standby() -> None:
    assert going({1}, [], 0, APART) == [1]


def test_others_go_together_while_there_are_standbys_for_all_of_them() -> None:
    assert going((), [[2, 3]], 2, APART) == [2, 3]
    assert going((), [[2, 3]], 1, APART) == []


def test_the_first_come_first_and_a_smaller_one_may_still_fit() -> None:
    nodes = [[0, 1], [4], [2, 3]]
    assert going((), nodes, 3, {}) == [0, 1, 4]
    assert going((), nodes, 1, {}) == [4]


def test_who_was_told_comes_before_the_others() -> None:
    assert going({0}, [[1, 2]], 2, {}) == [0]
    assert going({0}, [[0, 1]], 2, {}) == [0, 1], "a slot needs one standby, for whatever reason it goes"


def test_nobody_goes_together_with_the_keeper_of_its_copy() -> None:
    assert going({0, 2}, [], 2, APART) == [0]
    assert going((), [[0, 1, 2, 3]], 4, APART) == [0, 1]


def test_a_whole_mesh_moves_in_a_few_turns() -> None:
    for layout in (Layout(dp=2), Layout(dp=3), Layout(tp=2, pp=2), Layout(dp=5)):
        buddy_of, left, turns = buddies(layout), set(range(layout.world)), 0
        while left:
            now = going((), [sorted(left)], layout.world, buddy_of)
            assert now and not {buddy_of[slot] for slot in now} & set(now)
            left -= set(now)
            turns += 1
        assert turns <= 3


def test_a_slot_that_keeps_its_own_copy_can_go() -> None:
    assert going({0}, [], 1, {0: 0}) == [0]
