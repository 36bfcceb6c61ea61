"""A second fault while the first is being recovered from, in each part of a recovery: a new plan, and the same end."""

from itertools import pairwise
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FIRST = 3  # the slot that is lost first; its buddy is slot 1, and slot 0's is slot 2
STRIKES = (
    "detect:survivor",
    "fence:survivor",
    "build:newcomer",
    "groups:newcomer",
    "groups:survivor",
    "state:newcomer",
    "state:survivor",
    "groups:buddy",
)


def test_a_fault_in_each_part_of_a_recovery(sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed) -> None:
    planned = [
        Fault(iteration=2 * place + 1, phase="update.backward", slot=FIRST, kind="sigkill") for place in range(7)
    ]
    # Its buddy is lost while it moves, and only who leaves is left to hand its state over.
    planned.append(Fault(iteration=14, phase="update.backward", slot=FIRST, kind="sigterm"))
    knobs = ("cluster.standby=3", "recovery.hang_s=30", faults(planned))
    with Program(
        sandbox, tmp_path, *STRIKES, "--", *RECIPES["dp2tp2"], *knobs, module="tests.faults.sabotage"
    ) as program:
        done = program.wait()
    assert done.status == 0, done.output
    recoveries = done.summary.recoveries
    assert len(recoveries) == len(STRIKES)
    assert [one.source for one in recoveries] == ["peer"] * len(STRIKES)
    assert [one.lost_steps for one in recoveries] == [0] * len(STRIKES)
    # Who dies before anybody has asked is one of two; each other one costs an attempt, and a generation of its own.
    assert recoveries[0].slots == (0, FIRST)
    generations = [one.generation for one in recoveries]
    assert all(later >= earlier + 2 for earlier, later in pairwise(generations)), generations
    assert done.summary.state_digest == undisturbed("dp2tp2").summary.state_digest
