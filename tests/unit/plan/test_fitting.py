"""Where slots are lost, each goes to the standby that is built for it."""

import itertools

from ftppo.plan.fitting import fitting, least_covered


def fit(lost: list[int], **built_for: int | None) -> list[str]:
    return fitting(lost, list(built_for), built_for)


def test_a_lost_slot_meets_the_standby_built_for_it() -> None:
    assert fit([3], a=0, b=3, c=1)[0] == "b"
    assert fit([1, 3], a=0, b=3, c=1)[:2] == ["c", "b"]
    assert fit([0, 1, 3], a=0, b=3, c=1) == ["a", "c", "b"]


def test_the_rest_stay_in_line_behind() -> None:
    assert fit([3], a=0, b=3, c=1, d=None) == ["b", "a", "c", "d"]
    assert fit([], a=0, b=3, c=1, d=None) == ["a", "b", "c", "d"]


def test_a_slot_that_nobody_is_built_for_takes_nobody_from_another() -> None:
    assert fit([0, 2], a=7, b=2) == ["a", "b"]
    assert fit([2, 3], a=7, b=2) == ["b", "a"]


def test_two_standbys_built_for_one_slot_are_two() -> None:
    assert sorted(fit([2, 5], a=2, b=2)) == ["a", "b"]


def test_all_are_named_once_however_few_they_are() -> None:
    for num in range(4):
        for lost in itertools.combinations(range(4), num):
            assert sorted(fit(list(lost), a=0, b=None, c=2)) == ["a", "b", "c"]
    assert fit([0, 1]) == []


def test_the_order_is_only_of_those_named() -> None:
    assert fitting([0], ["b"], {"a": 0, "b": 1}) == ["b"]  # a is not warm


def test_a_standby_is_built_for_a_slot_few_are_for_and_on_another_node_if_it_can_be() -> None:
    nodes = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}
    assert least_covered(4, {}, nodes, "n0") == 2 and least_covered(4, {}, nodes, "n1") == 0
    assert least_covered(4, {2: 1, 3: 1}, nodes, "n0") == 0, "a slot without one comes first"
    assert least_covered(4, {0: 1, None: 5}, {}, None) == 1
    assert least_covered(4, {}, nodes, None) == least_covered(4, {}, {}, "n0") == 0
