"""Fewer standbys than losses and `recovery.when_short=shrink`: the run goes on with fewer replicas, then with all."""

from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOST = [Fault(iteration=1, phase="update.backward", slot=3, kind="sigkill")]
KNOBS = ("cluster.standby=0", "recovery.when_short=shrink", "train.iterations=24")


def test_a_run_shrinks_and_grows_back_and_learns_the_same(sandbox: Sandbox, tmp_path: Path) -> None:
    calm = run_program(sandbox, tmp_path, *RECIPES["dp2tp2"], *KNOBS, name="calm")
    done = run_program(sandbox, tmp_path, *RECIPES["dp2tp2"], *KNOBS, faults(LOST))
    assert done.status == 0, done.output
    shrunk, grown = done.summary.recoveries
    assert (shrunk.plan, shrunk.slots, shrunk.source, shrunk.lost_steps) == ("shrink", (3,), "peer", 0)
    assert (grown.plan, grown.source, grown.lost_steps) == ("grow", "peer", 0)
    assert (done.summary.iterations, done.summary.steps) == (calm.summary.iterations, calm.summary.steps)
    # Sums are taken in another order while the mesh is smaller: the same but for rounding.
    ours, theirs = done.rows("step"), calm.rows("step")
    assert [row["step"] for row in ours] == [row["step"] for row in theirs]
    early = [(a, b) for a, b in zip(ours, theirs, strict=True) if a["iteration"] <= 2]
    assert early and all(abs(a["policy_loss"] - b["policy_loss"]) < 1e-4 for a, b in early)
