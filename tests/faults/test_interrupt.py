"""A run that is told to stop stops: soon, with its files in order, and leaving nothing behind."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.program import Program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

INTERRUPTED = 130
STOPPED_S = 10.0  # where nothing else asks for the processors


@pytest.mark.parametrize(
    ("send", "number"),
    [
        pytest.param(os.killpg, signal.SIGINT, id="ctrl-c"),  # a terminal sends it to the whole group
        pytest.param(os.kill, signal.SIGTERM, id="sigterm"),
    ],
)
def test_an_interrupted_run_ends_in_order(
    send: Callable[[int, signal.Signals], None], number: signal.Signals, sandbox: Sandbox, tmp_path: Path
) -> None:
    endless = ("experiment=smoke", "train.iterations=100000", "cluster.standby=1", "checkpoint.every_iterations=0")
    with Program(sandbox, tmp_path, *endless) as program:
        program.wait_until(program.steps, "a step")
        send(program.process.pid, number)
        done = program.wait(STOPPED_S * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    assert done.status == INTERRUPTED, done.output
    assert "Traceback" not in done.output
    assert (done.summary.status, done.summary.reason) == ("failed", "interrupted")
    assert done.output.splitlines()[-1] == f"report: {done.folder / 'report.html'}"
    assert sandbox.lasting() == []
    assert sandbox.files() == []
