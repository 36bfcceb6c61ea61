"""The version to go back to: the newest that all slots are held in, each by its own actor where that lives."""

from ftppo.plan.holders import Common, newest_common

FROZEN = -1  # a version that is no place to go back to, but without which a copy is of no use

type Held = dict[str, list[tuple[int, int]]]


def everybody(*versions: int, num: int = 3) -> Held:
    """Every actor holds its own slot and its left neighbour's."""
    return {f"a{i}": [(slot, one) for slot in (i, (i - 1) % num) for one in versions] for i in range(num)}


def without(held: Held, *lost: str) -> Held:
    return {actor: tags for actor, tags in held.items() if actor not in lost}


SLOTS = ("a0", "a1", "a2")


def test_all_alive_go_back_to_their_own_newest() -> None:
    assert newest_common(SLOTS, everybody(4, 5)) == Common(5, {0: "a0", 1: "a1", 2: "a2"})


def test_an_own_copy_is_preferred_whatever_the_names() -> None:
    slots = ("z", "b")
    held = {"z": [(0, 7), (1, 7)], "b": [(0, 7), (1, 7)], "a": [(0, 7), (1, 7)]}
    found = newest_common(slots, held)
    assert found is not None and found.holder == {0: "z", 1: "b"}


def test_a_lost_slot_comes_from_its_buddy() -> None:
    found = newest_common(SLOTS, without(everybody(5), "a1"))
    assert found == Common(5, {0: "a0", 1: "a2", 2: "a2"})


def test_the_choice_between_buddies_does_not_hang_on_the_order_heard_in() -> None:
    held = {"c": [(0, 1)], "b": [(0, 1)]}
    for order in (held, dict(reversed(held.items()))):
        assert newest_common(("gone",), order) == Common(1, {0: "b"})


def test_one_slot_behind_holds_all_back() -> None:
    held = everybody(4, 5)
    held["a1"] = [(1, 3), (1, 4), (0, 4)]  # its step 5 is not taken yet ...
    held["a2"] = [(2, 5), (2, 4), (1, 4)]  # ... nor has its buddy got it
    assert newest_common(SLOTS, held) == Common(4, {0: "a0", 1: "a1", 2: "a2"})


def test_the_buddy_may_be_ahead_of_what_the_others_have() -> None:
    held = {"a0": [(0, 5), (0, 6)], "a2": [(2, 5), (1, 6), (1, 5)]}
    assert newest_common(SLOTS, held) == Common(5, {0: "a0", 1: "a2", 2: "a2"})


def test_nothing_in_common_is_none() -> None:
    assert newest_common(SLOTS, without(everybody(5), "a1", "a2")) is None  # slot 1 and its only buddy
    assert newest_common(("a0", "a1"), {"a0": [(0, 4)], "a1": [(1, 5)]}) is None
    assert newest_common(SLOTS, {}) is None


def test_what_whoever_asks_has_not_seen_does_not_count() -> None:
    for at_most, found in [(6, 5), (5, 5), (4, 4)]:
        common = newest_common(SLOTS, everybody(4, 5), at_most=at_most)
        assert common is not None and common.version == found
    assert newest_common(SLOTS, everybody(4, 5), at_most=3) is None


def test_who_is_to_hand_over_a_slot_must_hold_what_never_changes_too() -> None:
    held = {"a0": [(0, 5)], "a2": [(2, 5), (1, 5)]}
    assert newest_common(SLOTS, held, also=[FROZEN]) is None
    held["a2"].append((2, FROZEN))  # of another slot
    assert newest_common(SLOTS, held, also=[FROZEN]) is None
    held["a2"].append((1, FROZEN))
    assert newest_common(SLOTS, held, also=[FROZEN]) == Common(5, {0: "a0", 1: "a2", 2: "a2"})


def test_what_never_changes_is_no_version() -> None:
    held = {"a0": [(0, FROZEN)], "a1": [(1, FROZEN)]}
    assert newest_common(("a0", "a1"), held, also=[FROZEN]) is None


def test_copies_of_slots_that_are_no_more_are_passed_over() -> None:
    held = {"a0": [(0, 5), (7, 9)]}
    assert newest_common(("a0",), held) == Common(5, {0: "a0"})


def test_who_is_leaving_hands_over_what_nobody_else_holds() -> None:
    held = {"a0": [(0, 5), (0, FROZEN)], "a1": [(1, 5), (1, FROZEN), (0, 5), (0, FROZEN)]}
    slots = ("a0", "a1")
    assert newest_common(slots, held, also=[FROZEN], leaving=["a0"]) == Common(5, {0: "a1", 1: "a1"})
    del held["a1"][2:]
    assert newest_common(slots, held, also=[FROZEN], leaving=["a0"]) == Common(5, {0: "a0", 1: "a1"})
    del held["a0"][1:]  # it will not be there to keep what it has alone
    assert newest_common(slots, held, also=[FROZEN], leaving=["a0"]) is None
