"""Causes told from victims."""

import pytest

from ftppo.plan.faults import BeaconView, ErrorView, ExitKind, Fault, FaultKind, Leave, Observation, judge
from ftppo.plan.topology import Layout

LAYOUT = Layout(2, 2)


def see(slot: int, **known: object) -> Observation:
    return Observation(slot, f"actor-{slot}", **known)  # type: ignore[arg-type]


def judged(*observations: Observation) -> list[Fault]:
    return judge(observations, layout=LAYOUT, hang_s=60.0)


def beacon(micro: int, age_s: float = 100.0, phase: str = "update", step: int = 7) -> BeaconView:
    return BeaconView(phase, step, micro, age_s)


PEER_LOST: dict[str, object] = {"peer_lost": True, "error": ErrorView("PeerLost", "update", "connection closed")}

ONE_SLOT: dict[str, tuple[dict[str, object], str, str]] = {
    "killed": ({"process_dead": True}, "crash", "process died"),
    "detail": (
        {"process_dead": True, "exit_detail": "socket closed\nand more"},
        "crash",
        "process died: socket closed",
    ),
    "node": ({"process_dead": True, "node_alive": False}, "node_lost", "its node is gone"),
    "node unseen": ({"node_alive": False}, "node_lost", "its node is gone"),
    "host memory": (
        {"process_dead": True, "exit_kind": ExitKind.OOM},
        "oom",
        "process ended for want of memory",
    ),
    "device memory": (
        {"error": ErrorView("OutOfMemoryError", "update", "tried to allocate 2 GiB")},
        "oom",
        "out of memory, OutOfMemoryError in update: tried to allocate 2 GiB",
    ),
    "exception": ({"error": ErrorView("ValueError", "score", "bad\ntail")}, "exception", "ValueError in score: bad"),
    "exception, then dead": (
        {"error": ErrorView("ValueError", "score", "bad"), "process_dead": True, "exit_kind": ExitKind.FENCED},
        "exception",
        "ValueError in score: bad",
    ),
    "told": ({"leave": Leave.TOLD, "process_dead": False}, "preempted", "told to leave"),
    "told, dead": ({"leave": Leave.TOLD, "process_dead": True}, "preempted", "told to leave"),
    "asked for": ({"process_dead": True, "exit_kind": ExitKind.PREEMPTED}, "preempted", "told to leave"),
    "node drained": (
        {"leave": Leave.BETTER, "process_dead": False, "exit_detail": "its node is about to go"},
        "preempted",
        "told to leave: its node is about to go",
    ),
    "straggler": (
        {"share": 2.04, "process_dead": False},
        "straggler",
        "its replica takes 2.0 times as long as the others",
    ),
    "straggler, dead": ({"share": 2.04, "process_dead": True}, "crash", "process died"),
    "numbers raised": (
        {"error": ErrorView("FloatingPointError", "update", "loss is nan")},
        "bad_numerics",
        "FloatingPointError in update: loss is nan",
    ),
    "fenced": (
        {"process_dead": True, "exit_kind": ExitKind.FENCED, **PEER_LOST},
        "hang",
        "did not let go of its groups in time and was ended",
    ),
}


@pytest.mark.parametrize("case", ONE_SLOT)
def test_one_slot_at_fault_among_victims(case: str) -> None:
    known, kind, words = ONE_SLOT[case]
    faults = judged(see(0, **PEER_LOST), see(1, **PEER_LOST), see(2), see(3, **known))
    works = known.get("process_dead") is False
    leave = known.get("leave") or (Leave.BETTER if kind == "straggler" else None)
    assert faults == [Fault(3, FaultKind(kind), f"slot 3 (dp 1, tp 1): {words}", leave if works else None)]  # type: ignore[arg-type]


def test_words_about_memory_do_not_make_a_crash_an_oom() -> None:
    (fault,) = judged(see(0, process_dead=True, exit_detail="Out of memory, maybe"))
    assert fault.kind is FaultKind.CRASH and "Out of memory, maybe" in fault.reason


def test_several_causes_come_in_the_order_of_their_slots() -> None:
    faults = judged(see(3, process_dead=True), see(0, **PEER_LOST), see(1, node_alive=False))
    assert [(fault.slot, fault.kind) for fault in faults] == [(1, "node_lost"), (3, "crash")]


def test_a_victim_that_died_is_lost_too() -> None:
    faults = judged(see(0, process_dead=True, **PEER_LOST), see(1, process_dead=False, **PEER_LOST))
    assert [(fault.slot, fault.kind) for fault in faults] == [(0, "crash")]


def test_missing_data_accuses_nobody() -> None:
    assert judged(see(0), see(1), see(2), see(3)) == []
    assert judged(see(0, **PEER_LOST), see(1, **PEER_LOST)) == []
    assert judged(see(0, answered_control=False), see(1, beacon=beacon(3))) == []
    assert judged(see(0, beacon=beacon(3)), see(1), see(2)) == []


def test_the_one_behind_all_others_hangs() -> None:
    (fault,) = judged(see(0, beacon=beacon(5)), see(1, beacon=beacon(3)), see(2, beacon=beacon(4)), see(3))
    assert (fault.slot, fault.kind) == (1, "hang")
    assert "update, step 7, micro-batch 3" in fault.reason and "60" in fault.reason


@pytest.mark.parametrize(
    ("behind", "ahead"),
    [
        (beacon(9, step=6), beacon(0, step=7)),
        (beacon(9, phase="save", step=6), beacon(0, phase="rollout", step=7)),
        (beacon(9, phase="rollout"), beacon(0, phase="score")),
        (beacon(9, phase="update"), beacon(0, phase="save")),
        (beacon(9, phase="update"), beacon(1, phase="snapshot")),
        (beacon(1, phase="snapshot"), beacon(0, phase="update", step=8)),
        (beacon(0, phase="rollout", step=8), beacon(0, phase="idle", step=8)),
    ],
)
def test_step_then_phase_then_micro_batch_say_who_is_behind(behind: BeaconView, ahead: BeaconView) -> None:
    assert [fault.slot for fault in judged(see(0, beacon=ahead), see(1, beacon=behind))] == [1]


def test_no_hang_before_its_deadline_and_none_where_a_cause_is_known() -> None:
    assert judged(see(0, beacon=beacon(5)), see(1, beacon=beacon(3, age_s=60.0))) == []
    faults = judged(see(0, process_dead=True), see(1, beacon=beacon(3)), see(2, beacon=beacon(4)))
    assert [(fault.slot, fault.kind) for fault in faults] == [(0, "crash")]


def test_equal_progress_and_victims_are_not_accused_of_hanging() -> None:
    assert judged(see(0, beacon=beacon(3)), see(1, beacon=beacon(3)), see(2, beacon=beacon(4))) == []
    assert judged(see(0, beacon=beacon(3), **PEER_LOST), see(1, beacon=beacon(4))) == []


def test_silence_hangs_when_it_is_long_enough() -> None:
    stopped = see(2, beacon=beacon(3), answered_control=False, silent_s=2.0)
    assert [fault.slot for fault in judged(see(0, beacon=beacon(3)), stopped, see(1, beacon=beacon(3)))] == [2]
    never_heard = see(2, answered_control=False, silent_s=61.0)
    assert [(fault.slot, fault.kind) for fault in judged(never_heard)] == [(2, "hang")]
    assert judged(see(2, answered_control=False, silent_s=59.0)) == []
    assert judged(see(2, beacon=beacon(0, phase="idle", age_s=900.0), answered_control=False, silent_s=1.0)) == []


def test_a_world_of_one_can_hang() -> None:
    (fault,) = judge([see(0, beacon=beacon(3))], layout=Layout(), hang_s=60.0)
    assert fault.reason.startswith("slot 0: stands still in update") and "others" not in fault.reason


def test_a_slot_is_observed_once() -> None:
    with pytest.raises(AssertionError):
        judged(see(0), see(0))
