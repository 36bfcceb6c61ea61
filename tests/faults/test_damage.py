"""A run whose newest checkpoint is damaged goes on from the one before, and ends as if nothing had been."""

from pathlib import Path

import pytest

from ftppo.checkpoint.catalog import Catalog
from ftppo.config import Fault
from ftppo.storage.url import open_store
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Program, faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_damaged_checkpoint_costs_iterations_and_nothing_else(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    command = (*RECIPES["dp2"], "checkpoint.every_iterations=2", "checkpoint.keep_last=3")
    first = run_program(sandbox, tmp_path, *command, "train.iterations=4")
    assert first.status == 0, first.output
    store = open_store(str(first.folder / "checkpoints"))
    catalog = Catalog(store)
    newest, older = catalog.published()
    lost = f"{newest.prefix}/__1_0.distcp"  # rank 0 loads all that it asks for
    store.delete(lost)

    refused = run_program(sandbox, tmp_path, *command, "checkpoint.fallback=false")
    assert refused.status == 1
    reason = refused.summary.reason or ""
    assert lost in reason and f"checkpoint.fallback=true goes on from step {older.step}" in reason
    assert catalog.steps() == [newest.step, older.step]

    done = run_program(sandbox, tmp_path, *command)
    assert done.status == 0, done.output
    (told,) = done.reasons("checkpoint_damaged")
    assert told == f"step {newest.step}: {lost} is missing; going back to step {older.step}"
    assert [row["iteration"] for row in done.rows("iteration")] == [0, 1, 2, 3, 2, 3, 4, 5]
    assert newest.step in catalog.steps()
    assert all(catalog.verify(step, deep=True) == [] for step in catalog.steps())
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest


def test_a_checkpoint_found_damaged_in_the_middle_of_a_recovery_is_passed_over(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    pause = Fault(iteration=4, phase="rollout", slot=0, kind="slow", seconds=10.0)
    kill = Fault(iteration=4, phase="update.optimizer", slot=0, kind="sigkill")
    knobs = ("cluster.standby=1", "snapshot.every_steps=0", "checkpoint.every_iterations=2", "checkpoint.keep_last=3")
    with Program(sandbox, tmp_path, *RECIPES["dp2"], *knobs, faults([pause, kill])) as program:
        store = open_store(str(program.folder / "checkpoints"))
        catalog = Catalog(store)
        program.wait_until(lambda: len(catalog.steps()) == 2, "a second checkpoint")
        newest, older = catalog.published()
        lost = f"{newest.prefix}/__1_0.distcp"
        store.delete(lost)
        assert program.iterations() == 4 and not program.has("fault"), "the damage came too late"
        done = program.wait()
    assert done.status == 0, done.output
    (told,) = done.reasons("checkpoint_damaged")
    assert told == f"step {newest.step}: {lost} is missing; going back to step {older.step}"
    (recovery,) = done.summary.recoveries
    # Two steps an iteration: those of two iterations after the older checkpoint, and the first of the fifth.
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((0,), "checkpoint", 5)
    assert [row["iteration"] for row in done.rows("iteration")] == [0, 1, 2, 3, 2, 3, 4, 5]
    assert newest.step in catalog.steps()
    assert all(catalog.verify(step, deep=True) == [] for step in catalog.steps())
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest
