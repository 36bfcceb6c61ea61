"""Standbys try their devices together behind the training, and are as good for a slot afterwards as before."""

import signal
from pathlib import Path

import pytest

from tests.faults.conftest import RECIPES
from tests.faults.program import Program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_two_standbys_try_together_and_one_takes_a_slot(sandbox: Sandbox, tmp_path: Path) -> None:
    knobs = ("cluster.standby=2", "train.iterations=1000", "checkpoint.every_iterations=0")
    with Program(sandbox, tmp_path, *RECIPES["dp2"], *knobs) as program:
        program.wait_until(lambda: program.has("standbys_tried"), "tried")
        program.wait_until(lambda: _kill_a_slot(sandbox), "at work")
        program.wait_until(lambda: program.has("recovered"), "recovered")
        program.process.send_signal(signal.SIGINT)
        done = program.wait()
    assert done.status == 130, done.output
    (tried,) = done.reasons("standbys_tried")[:1]
    assert tried in ("a2 with a3: the sum is right", "a3 with a2: the sum is right")
    (recovery,) = done.summary.recoveries
    assert (recovery.source, recovery.lost_steps) == ("peer", 0)


def _kill_a_slot(sandbox: Sandbox) -> bool:
    """Kill an actor that is at work in a slot, as its title tells; False where none is seen to be."""
    working = [process for process in sandbox.processes() if "TrainActor.call" in "".join(process.cmdline())]
    for process in working[:1]:
        process.kill()
    return bool(working)
