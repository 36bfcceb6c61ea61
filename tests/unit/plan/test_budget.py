"""Recoveries are counted in all, and by kind and hour."""

import pytest

from ftppo.plan.budget import HOUR_S, refusal
from ftppo.plan.faults import FaultKind

CRASH, HANG = FaultKind.CRASH, FaultKind.HANG


def test_so_many_in_all_and_not_one_more() -> None:
    begun = [(float(hour) * HOUR_S, [CRASH]) for hour in range(4)]
    assert refusal(begun, most=4, an_hour=1) is None
    said = refusal(begun, most=3, an_hour=0)
    assert said is not None and said.startswith("no recovery is left of recovery.max_recoveries=3: ")
    assert refusal(begun[:1], most=0, an_hour=0) is not None


def test_of_one_kind_within_an_hour() -> None:
    begun = [(0.0, [CRASH]), (10.0, [HANG]), (20.0, [CRASH, HANG])]
    assert refusal(begun, most=9, an_hour=2) is None
    said = refusal(begun, most=9, an_hour=1)
    assert said is not None and said.startswith("2 times crash within an hour, and recovery.max_per_hour=1: ")
    assert refusal(begun[:2], most=9, an_hour=1) is None


@pytest.mark.parametrize(("later", "refused"), [(HOUR_S - 1, True), (HOUR_S, False)])
def test_what_is_an_hour_old_does_not_count(later: float, refused: bool) -> None:
    assert (refusal([(5.0, [CRASH]), (5.0 + later, [CRASH])], most=9, an_hour=1) is not None) is refused


def test_what_nobody_is_to_blame_for_is_of_no_kind() -> None:
    assert refusal([(0.0, []), (1.0, [])], most=2, an_hour=1) is None
    assert refusal([(0.0, []), (1.0, [])], most=1, an_hour=1) is not None
