"""Every kind of fault in every phase: a run for each kind, which meets it in one phase after the other.

Takes half an hour, and so runs only where asked for: `bash run.sh test -m long`.
"""

from pathlib import Path
from typing import get_args

import pytest

from ftppo.config import Fault, FaultKind, FaultPhase
from ftppo.worker.inject import HARMLESS
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(900)]

RECIPE, SLOTS, HANG_S = "dp2tp2 long", 4, 5
KINDS: tuple[FaultKind, ...] = (
    "sigkill", "sigstop", "exit", "segfault", "exception", "gil_hang", "nan", "slow", "oom", "kill_dp_group", "sigterm",
)  # fmt: skip
PHASES: tuple[FaultPhase, ...] = tuple(phase for phase in get_args(FaultPhase) if phase != "eval")
WITH_GRADIENTS: tuple[FaultPhase, ...] = ("update", "update.forward", "update.backward", "update.reduce")


@pytest.mark.parametrize("first_slot", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_in_every_phase(
    sandbox: Sandbox, tmp_path: Path, undisturbed: Undisturbed, kind: FaultKind, first_slot: int
) -> None:
    phases = WITH_GRADIENTS if kind == "nan" else PHASES
    seconds = 0.5 if kind == "slow" else 0.0
    planned = [
        Fault(iteration=2 * place + 1, phase=phase, slot=(first_slot + place) % SLOTS, kind=kind, seconds=seconds)
        for place, phase in enumerate(phases)
    ]
    knobs = ("cluster.standby=2", f"recovery.hang_s={HANG_S}", "recovery.max_recoveries=100", faults(planned))
    done = run_program(sandbox, tmp_path, *RECIPES[RECIPE], *knobs)
    assert done.status == 0, done.output
    assert len(done.reasons("injected")) == len(phases)
    recoveries = done.summary.recoveries
    assert len(recoveries) == (0 if kind in HARMLESS else len(phases))
    assert {(one.source, one.lost_steps) for one in recoveries} <= {("peer", 0)}
    wanted = undisturbed(RECIPE).summary
    assert (done.summary.state_digest, done.summary.reward) == (wanted.state_digest, wanted.reward)
