"""Evaluation in a run: a fault in its midst costs nothing, and training ends in the same bits with it and without."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ftppo.config import Fault
from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.runfiles import SAMPLES
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Outcome, faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KNOBS = ("eval.every_iterations=4", "eval.prompts=5", "eval.samples=2")


def samples(done: Outcome, iteration: int) -> list[dict[str, Any]]:
    return [row for row in read_lines(done.folder / SAMPLES) if row["iteration"] == iteration]


def test_a_fault_in_an_evaluation_changes_no_weight_and_no_answer(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    kill = Fault(iteration=4, phase="eval", slot=1, kind="sigkill")
    done = run_program(sandbox, tmp_path, *RECIPES["dp2"], *KNOBS, "cluster.standby=1", faults([kill]))
    assert done.status == 0, done.output
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest
    (record,) = done.summary.recoveries
    assert (record.slots, record.phase, record.lost_steps) == ((1,), "idle", 0)
    rows = done.rows("eval")
    assert [(row["iteration"], row["num_prompts"]) for row in rows] == [(0, 5), (4, 5), (6, 5)]
    assert all({"reward_mean", "pass@1", "pass@2", "response_length"} <= row.keys() for row in rows)
    told = Counter((row["iteration"], row["decoding"]) for row in read_lines(done.folder / SAMPLES))
    assert told == {(at, how): num for at in (0, 4, 6) for how, num in (("greedy", 5), ("sample", 10))}
    assert "* evaluation: after 6 iterations on 5 prompts" in done.output

    other = run_program(
        sandbox, tmp_path, "experiment=smoke", "parallel=tp2", *KNOBS, "train.iterations=1", name="other"
    )
    assert other.status == 0, other.output
    assert samples(other, 0) == samples(done, 0), "the same weights give the same answers in another layout"
