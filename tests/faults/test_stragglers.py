"""A replica that is slow is told of, and where that is wanted replaced, with nothing lost and the same bits."""

from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = "recovery.straggler_steps=4"  # of two iterations


def slow(num_iterations: int, seconds: float) -> str:
    """Slot 1 takes so much longer for one of the two steps of each of the first iterations."""
    found = [
        Fault(iteration=number, phase="update.forward", slot=1, kind="slow", seconds=seconds)
        for number in range(num_iterations)
    ]
    return faults(found)


def test_a_straggler_is_told_of_once(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    done = run_program(sandbox, tmp_path, *RECIPES["dp2"], STEPS, slow(6, seconds=0.5))
    assert done.status == 0, done.output
    (said,) = done.reasons("straggler")
    assert said.startswith("slot 1 (dp 1) takes ")
    assert f"* straggler: {said}" in done.output
    rows = done.rows("share")
    assert len(rows) == 3 and all(row["replica_1"] > 1.5 > 1 > row["replica_0"] for row in rows)
    assert done.summary.recoveries == ()
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest


def test_a_straggler_is_replaced(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    knobs = ("cluster.standby=1", "recovery.replace_stragglers=true", STEPS, slow(22, seconds=1.0))
    done = run_program(sandbox, tmp_path, *RECIPES["dp2 long"], *knobs)
    assert done.status == 0, done.output
    assert done.summary.recoveries, done.output
    for recovery in done.summary.recoveries:  # whoever takes the slot is struck too
        assert (recovery.slots, recovery.source, recovery.lost_steps) == ((1,), "peer", 0)
        assert recovery.cause.startswith("straggler: slot 1 (dp 1): its replica takes ")
    assert done.summary.state_digest == undisturbed("dp2 long").summary.state_digest
