"""A bit of one replica's weights flips: it is found before the next iteration, and the run ends as if it had not."""

from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# Before the last step's snapshot is taken, so that it has the flipped bit too.
FLIP = Fault(iteration=1, phase="snapshot", slot=1, kind="bitflip")
EVERY_STEP = "recovery.compare_every_steps=1"
THREE = (
    "experiment=smoke",
    "parallel.dp=3",
    "train.iterations=4",
    "train.epochs=2",
    "train.prompts=24",
    "train.mini_batch=24",
)


def test_of_two_replicas_both_go_back_a_step(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    done = run_program(sandbox, tmp_path, *RECIPES["dp2"], EVERY_STEP, faults([FLIP]))
    assert done.status == 0, done.output
    (said,) = done.reasons("corruption")
    assert "slot 0" in said and "slot 1" in said
    (recovery,) = done.summary.recoveries
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((), "peer", 1)
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest


def test_of_three_replicas_the_odd_one_is_replaced(sandbox: Sandbox, tmp_path: Path) -> None:
    calm = run_program(sandbox, tmp_path, *THREE, name="calm")
    done = run_program(sandbox, tmp_path, *THREE, EVERY_STEP, "cluster.standby=1", faults([FLIP]))
    assert (calm.status, done.status) == (0, 0), calm.output + done.output
    (recovery,) = done.summary.recoveries
    assert recovery.cause.startswith("corrupt: slot 1")
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((1,), "peer", 1)
    assert done.summary.state_digest == calm.summary.state_digest
