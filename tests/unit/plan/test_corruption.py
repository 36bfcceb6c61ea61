"""Replicas vote; where the vote is even, nobody is accused."""

import pytest

from ftppo.plan.corruption import Verdict, compare
from ftppo.plan.topology import Layout

TP2_DP3 = Layout(dp=3, tp=2)  # slots 0, 2, 4 hold one half of the model, 1, 3, 5 the other


@pytest.mark.parametrize(
    ("fingerprints", "verdict"),
    [
        ([7, 8, 7, 8, 7, 8], Verdict()),
        ([7, 8, 9, 8, 7, 8], Verdict(odd=(2,))),
        ([7, 1, 9, 8, 7, 8], Verdict(odd=(1, 2))),
        ([1, 8, 2, 8, 3, 8], Verdict(doubtful=(0, 2, 4))),
        ([1, 8, 2, 9, 3, 8], Verdict(odd=(3,), doubtful=(0, 2, 4))),
    ],
)
def test_the_majority_of_a_part_is_right(fingerprints: list[int], verdict: Verdict) -> None:
    assert compare(fingerprints, TP2_DP3) == verdict


def test_of_two_replicas_both_are_in_doubt() -> None:
    assert compare([5, 6], Layout(dp=2)) == Verdict(doubtful=(0, 1))


def test_context_parallel_ranks_are_replicas_too() -> None:
    assert compare([5, 5, 6, 5], Layout(dp=2, cp=2)) == Verdict(odd=(2,))


def test_parts_of_one_model_are_not_compared() -> None:
    assert compare([1, 2, 3, 4], Layout(tp=2, pp=2)) == Verdict()
