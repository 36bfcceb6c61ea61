"""Fewer standbys than losses: the run stops with its reason and can go on later, or waits for new actors."""

from pathlib import Path

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.config import Fault
from ftppo.storage.url import open_store
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BOTH = [Fault(iteration=4, phase="update.forward", slot=slot, kind="sigkill") for slot in (0, 1)]
ONE_BY_ONE = [
    Fault(iteration=2, phase="update.gather", slot=1, kind="sigkill"),
    Fault(iteration=4, phase="update.backward", slot=0, kind="sigterm"),
]


def test_a_run_that_ran_out_of_standbys_goes_on_later(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    command = (*RECIPES["dp2"], "cluster.standby=1", "recovery.when_short=fail", "checkpoint.every_iterations=3")
    failed = run_program(sandbox, tmp_path, *command, faults(BOTH))
    assert failed.status == 1, failed.output
    assert "Traceback" not in failed.output
    assert failed.summary.status == "failed"
    assert failed.summary.state_digest is None
    reason = failed.summary.reason or ""
    for told in ("slot 0", "slot 1", "2 slots lost", "cluster.standby", "recovery.when_short"):
        assert told in reason

    catalog = Catalog(open_store(str(failed.folder / "checkpoints")))
    newest = catalog.latest()
    assert newest is not None and newest.iteration == 3
    assert catalog.verify(newest.step, deep=True) == []

    resumed = run_program(sandbox, tmp_path, *command, "run.resume=must")
    assert resumed.status == 0, resumed.output
    assert resumed.reasons("resumed") == [f"from the checkpoint of step {newest.step}, iteration 3"]
    assert resumed.summary.state_digest == undisturbed("dp2").summary.state_digest


def test_a_run_that_waits_fills_the_bundle_that_came_free(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    knobs = ("cluster.standby=0", "recovery.when_short=wait", faults(ONE_BY_ONE))
    done = run_program(sandbox, tmp_path, *RECIPES["dp2"], *knobs)
    assert done.status == 0, done.output
    found = [(one.slots, one.plan, one.source, one.lost_steps) for one in done.summary.recoveries]
    assert found == [((slot,), "substitute", "peer", 0) for slot in (1, 0)]
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest
