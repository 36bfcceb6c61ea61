"""Ranks that neither die nor go on: one is stopped, one holds its interpreter. Nobody waits for them for long."""

from pathlib import Path

import psutil
import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FOREVER_S = 600.0
HANGS = (
    Fault(iteration=1, phase="update.backward", slot=1, kind="sigstop"),
    Fault(iteration=3, phase="rollout", slot=0, kind="gil_hang", seconds=FOREVER_S),
    Fault(iteration=4, phase="save", slot=1, kind="sigstop"),  # long before checkpoint.save_s is over
)


def test_hanging_ranks_are_replaced(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    knobs = ("cluster.standby=2", "recovery.hang_s=4", faults(HANGS))
    with Program(sandbox, tmp_path, *RECIPES["dp2"], *knobs) as program:
        (stopped,) = program.wait_until(lambda: _stopped(sandbox), "a process stopped")
        program.wait_until(lambda: program.has("recovered"), "recovered")
        assert not stopped.is_running()
        done = program.wait()
    assert done.status == 0, done.output
    found = [(one.cause.partition(":")[0], one.slots, one.phase, one.source) for one in done.summary.recoveries]
    assert found == [
        ("hang", (1,), "update", "peer"),
        ("hang", (0,), "rollout", "peer"),
        ("hang", (1,), "save", "peer"),
    ]
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest


def _stopped(sandbox: Sandbox) -> list[psutil.Process]:
    found = []
    for process in sandbox.processes():
        try:
            if process.status() == psutil.STATUS_STOPPED:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found
