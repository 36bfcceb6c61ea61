"""A replica is compared with what the others take, by medians: one slow step makes no straggler."""

import pytest

from ftppo.plan.stragglers import shares, stragglers
from ftppo.plan.topology import Layout


def test_a_share_is_of_what_the_others_take() -> None:
    assert shares([[1.0, 3.0]], Layout(dp=2)) == [pytest.approx(1 / 3), 3.0]
    assert shares([[1.0, 1.0, 1.0, 2.0, 4.0]], Layout(dp=5))[3:] == [2.0, 4.0]
    assert shares([[1.0, 3.0, 6.0, 5.0]], Layout(dp=4))[2] == 2.0  # of 1, 3, 5
    assert shares([[2.0, 2.0, 2.0]], Layout(dp=3)) == [1.0] * 3


def test_one_slow_step_is_no_evidence_and_most_of_them_are() -> None:
    calm, struck = [1.0, 1.0], [1.0, 9.0]
    assert shares([calm, struck, calm], Layout(dp=2))[1] == 1.0
    assert shares([struck, calm, struck], Layout(dp=2))[1] == 9.0


def test_a_replica_takes_as_long_as_its_slowest_rank() -> None:
    layout = Layout(dp=2, tp=2)  # slots 0, 1 and 2, 3
    assert shares([[1.0, 1.0, 1.0, 2.0]], layout) == [0.5, 2.0]


def test_pipeline_stages_belong_to_their_replicas() -> None:
    layout = Layout(dp=2, pp=2)
    slots = {dp: layout.dp_replica(dp) for dp in range(2)}
    paces = [1.0] * 4
    paces[slots[1][1]] = 5.0
    assert shares([paces], layout)[1] == 5.0


def test_the_slowest_comes_first() -> None:
    assert stragglers([1.0, 2.0, 0.4, 3.0, 1.5], ratio=1.5) == [3, 1]
    assert stragglers([1.0, 9.0], ratio=0.0) == []
