"""What is not in memory any more comes from the last checkpoint: after the driver's death, and without snapshots."""

from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import RAYS_AGENTS, Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIGKILLED = -9
EVERY_TWO = "checkpoint.every_iterations=2"


def test_the_same_command_goes_on_after_the_driver_was_killed(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    kill = Fault(iteration=3, phase="update", slot=0, kind="kill_driver")
    command = (*RECIPES["dp2"], EVERY_TWO, faults([kill]))
    killed = run_program(sandbox, tmp_path, *command)
    assert killed.status == SIGKILLED, killed.output
    assert sandbox.lasting(apart_from=RAYS_AGENTS) == []
    sandbox.end()
    sandbox.forget_files()

    done = run_program(sandbox, tmp_path, *command)
    assert done.status == 0, done.output
    assert done.reasons("injected") == ["0: kill_driver in update"]
    assert len(done.reasons("resumed")) == 1
    assert [row["iteration"] for row in done.rows("iteration")] == [0, 1, 2, 2, 3, 4, 5]
    (restart,) = done.summary.recoveries
    # One iteration of two steps after the checkpoint: the driver goes before it hears of the next one.
    assert (restart.plan, restart.source, restart.slots, restart.lost_steps) == ("restart", "checkpoint", (), 2)
    wanted = undisturbed("dp2").summary
    assert (done.summary.state_digest, done.summary.reward) == (wanted.state_digest, wanted.reward)


def test_without_snapshots_all_go_back_to_the_checkpoint(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    kill = Fault(iteration=3, phase="update.optimizer", slot=0, kind="sigkill")
    knobs = ("cluster.standby=1", "snapshot.every_steps=0", EVERY_TWO, faults([kill]))
    done = run_program(sandbox, tmp_path, *RECIPES["dp2"], *knobs)
    assert done.status == 0, done.output
    (recovery,) = done.summary.recoveries
    # The fault is in the second of an iteration's two steps, one iteration after the checkpoint.
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((0,), "checkpoint", 3)
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest
