"""Injected faults: once each, at the right place."""

from typing import Any, get_args

import pytest

from ftppo.config import Fault, FaultPhase
from ftppo.plan.chaos import ChaosSchedule, call_of, targets
from ftppo.plan.topology import Layout

LAYOUT = Layout(dp=2, tp=2, pp=2)


def fault(**changed: Any) -> Fault:
    return Fault(**({"iteration": 1, "phase": "update", "slot": 3, "kind": "sigkill"} | changed))


def test_each_fault_is_handed_out_once() -> None:
    faults = (fault(), fault(), fault(phase="save"), fault(iteration=2))
    schedule = ChaosSchedule(faults)
    assert schedule.take(0, "update") == ((), schedule)
    due, after = schedule.take(1, "update")
    assert due == faults[:2]
    assert after.take(1, "update") == ((), after)
    assert after.take(1, "save")[0] == faults[2:3]
    assert schedule.take(1, "update")[0] == faults[:2]


@pytest.mark.parametrize("phase", get_args(FaultPhase))
def test_a_fault_is_due_in_the_call_that_its_phase_is_part_of(phase: FaultPhase) -> None:
    faults = (fault(phase=phase),)
    call = {"rollout": "rollout", "score": "score", "save": "save", "eval": "eval"}.get(phase, "update")
    assert call_of(phase) == call
    calls: tuple[FaultPhase, ...] = ("rollout", "score", "update", "save", "eval")
    assert [one for one in calls if ChaosSchedule(faults).take(1, one)[0]] == [call]


def test_parts_of_one_call_are_due_together_and_keep_their_order() -> None:
    faults = (fault(phase="snapshot"), fault(phase="rollout"), fault(phase="update.reduce"), fault(phase="update"))
    due, after = ChaosSchedule(faults).take(1, "update")
    assert due == (faults[0], faults[2], faults[3])
    assert after.spent == {0, 2, 3}
    assert after.take(1, "rollout")[0] == faults[1:2]


def test_a_resumed_schedule_knows_what_is_spent() -> None:
    faults = (fault(kind="kill_driver"), fault(iteration=2))
    _, after = ChaosSchedule(faults).take(1, "update")
    resumed = ChaosSchedule(faults, frozenset(after.spent))
    assert resumed.take(1, "update")[0] == () and resumed.take(2, "update")[0] == faults[1:]


def test_a_replica_is_hit_as_a_whole_and_the_rest_one_slot() -> None:
    assert targets(fault(kind="kill_dp_group"), LAYOUT) == LAYOUT.dp_replica(1) == (2, 3, 6, 7)
    assert targets(fault(kind="kill_node"), LAYOUT) == (3,)
