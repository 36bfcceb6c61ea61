"""Injected faults strike in their place, once, and say so before; every kind does what its name says."""

import ctypes
import os
import signal
from collections.abc import Callable
from typing import Any, get_args

import pytest

from ftppo.config import Fault
from ftppo.worker import inject
from ftppo.worker.beacon import Progress
from ftppo.worker.inject import InjectedFault, arm

type Struck = list[tuple[str, str]]  # what, kind

BY_THE_DRIVER = {"kill_driver"}


def fault(phase: str = "update", kind: str = "exit", **other: Any) -> Fault:
    return Fault.model_validate({"iteration": 1, "phase": phase, "kind": kind} | other)


def reports(struck: Struck) -> Callable[[str, float], None]:
    return lambda kind, at: struck.append(("report", kind))


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Struck:
    """What happens, in order; nothing really does."""
    found: Struck = []
    for kind in inject._KINDS:
        monkeypatch.setitem(inject._KINDS, kind, lambda fault: found.append(("strike", fault.kind)))
    return found


def armed(*faults: Fault, struck: Struck) -> Progress:
    progress = Progress()
    arm(progress, faults, reports(struck))
    return progress


ONE_STRIKE = [("report", "exit"), ("strike", "exit")]


def test_a_fault_strikes_in_its_part_of_its_phase_and_once(struck: Struck) -> None:
    progress = armed(fault("update.reduce"), struck=struck)
    for phase in ("rollout", "score"):
        progress.enter(phase)
        progress.tick()
        progress.tick("reduce")
    progress.enter("update")
    for part in ("forward", "backward", "", "reduced"):
        progress.tick(part)
    assert struck == []
    progress.tick("reduce")
    assert struck == ONE_STRIKE
    progress.tick("reduce")
    assert struck == ONE_STRIKE


def test_entering_a_phase_is_too_early(struck: Struck) -> None:
    progress = armed(fault("rollout"), struck=struck)
    progress.enter("rollout")
    assert struck == []
    progress.tick()
    assert struck == ONE_STRIKE


def test_a_whole_phase_is_struck_in_whichever_part_comes_first(struck: Struck) -> None:
    progress = armed(fault("update"), struck=struck)
    progress.enter("update")
    progress.tick("backward")
    progress.tick("reduce")
    assert struck == ONE_STRIKE


def test_two_faults_in_one_place_strike_in_their_order(struck: Struck) -> None:
    progress = armed(fault(kind="slow"), fault(kind="exit"), fault("save", "oom"), struck=struck)
    progress.enter("update")
    progress.tick("forward")
    assert [kind for what, kind in struck if what == "strike"] == ["slow", "exit"]


def test_the_report_comes_with_the_time_and_before_the_end() -> None:
    heard: list[tuple[str, float]] = []
    progress = Progress()
    arm(progress, [fault(kind="exception")], lambda kind, at: heard.append((kind, at)))
    progress.enter("update")
    before = progress.read().time
    with pytest.raises(InjectedFault, match="injected in update of iteration 1"):
        progress.tick()
    assert [kind for kind, _ in heard] == ["exception"] and heard[0][1] >= before
    progress.tick()  # what was raised is not raised again


def test_nan_spoils_the_gradients_and_ends_nothing(struck: Struck) -> None:
    progress = armed(fault(kind="nan"), struck=struck)
    progress.enter("update")
    found = [progress.poisoned]
    progress.tick("forward")
    found.append(progress.poisoned)
    progress.poisoned = False
    progress.tick("forward")
    found.append(progress.poisoned)
    assert found == [False, True, False] and not struck


def test_no_faults_are_no_strikes(struck: Struck) -> None:
    progress = armed(struck=struck)
    progress.enter("update")
    progress.tick()
    assert struck == []


def test_every_kind_of_the_configuration_can_be_carried_out() -> None:
    kinds = set(get_args(Fault.model_fields["kind"].annotation))
    assert set(inject._KINDS) | {"nan", "bitflip"} | BY_THE_DRIVER == kinds


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        ("sigkill", signal.SIGKILL),
        ("kill_dp_group", signal.SIGKILL),
        ("sigstop", signal.SIGSTOP),
        ("sigterm", signal.SIGTERM),
    ],
)
def test_kinds_that_are_signals_go_to_the_own_process(
    kind: str, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *which: sent.append(which))
    inject._KINDS[kind](fault(kind=kind))
    assert sent == [(os.getpid(), number)]


def test_a_node_goes_with_the_parent_and_then_the_process_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *which: sent.append(which))
    inject._KINDS["kill_node"](fault(kind="kill_node"))
    assert sent == [(os.getppid(), signal.SIGKILL), (os.getpid(), signal.SIGKILL)]


def test_exit_ends_without_goodbye(monkeypatch: pytest.MonkeyPatch) -> None:
    status: list[int] = []
    monkeypatch.setattr(os, "_exit", status.append)
    inject._KINDS["exit"](fault(kind="exit"))
    assert len(status) == 1 and status[0] != 0


def test_want_of_memory_is_what_python_raises_for_it() -> None:
    with pytest.raises(MemoryError, match="injected in update of iteration 1"):
        inject._KINDS["oom"](fault(kind="oom"))


def test_slow_sleeps_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(inject.time, "sleep", slept.append)
    inject._KINDS["slow"](fault(kind="slow", seconds=2.5))
    assert slept == [2.5]


def test_a_hang_holds_the_interpreter_for_its_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    class Library:
        def __init__(self, name: None) -> None: ...

        def usleep(self, micro: ctypes.c_uint) -> None:
            held.append(micro.value)

    monkeypatch.setattr(ctypes, "PyDLL", Library)
    inject._KINDS["gil_hang"](fault(kind="gil_hang", seconds=30.0))
    inject._KINDS["gil_hang"](fault(kind="gil_hang"))
    assert held == [30_000_000, inject.FOREVER_S * 1e6]
