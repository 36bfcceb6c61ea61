"""Every kind of loss in every phase, in one run: the weights end as if nothing had happened."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ftppo.config import Fault
from ftppo.driver.record import RECOVERY_PHASES, RecoveryRecord
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Outcome, faults, run_program
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Case:
    """A fault, and what is to be said of it. Without `judged` nobody is lost."""

    phase: str
    slot: int
    kind: str
    judged: str | None = None
    seen_in: str = "update"  # the phase that the recovery names
    slots: tuple[int, ...] = ()  # those lost, where it is not the fault's own alone
    seconds: float = 0.0


CASES = (  # one an iteration, from the second on
    Case("rollout", 0, "exit", "crash", "rollout"),
    Case("score", 1, "exception", "exception", "score"),
    Case("update.forward", 2, "sigkill", "crash"),
    Case("update.backward", 3, "segfault", "crash"),
    Case("update.reduce", 0, "sigkill", "crash"),
    Case("update.optimizer", 1, "oom", "oom"),
    Case("update.gather", 2, "sigkill", "crash"),
    Case("update", 0, "slow", seconds=1.0),
    Case("snapshot", 3, "sigkill", "crash"),
    Case("update.reduce", 2, "nan"),
    Case("save", 1, "sigkill", "crash", "save"),
    Case("update", 2, "kill_dp_group", "crash", slots=(2, 3)),
    Case("update", 3, "sigterm", "preempted", "idle"),
    Case("rollout", 0, "sigkill", "crash", "rollout"),
)
LOSSES = [case for case in CASES if case.judged]


@pytest.fixture(scope="module")
def disturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    planned = [
        Fault.model_validate(
            {"iteration": place, "phase": case.phase, "slot": case.slot, "kind": case.kind, "seconds": case.seconds}
        )
        for place, case in enumerate(CASES, start=1)
    ]
    with Sandbox() as sandbox:
        knobs = ("cluster.standby=3", "recovery.hang_s=30")
        yield run_program(sandbox, tmp_path_factory.mktemp("matrix"), *RECIPES["dp2tp2"], *knobs, faults(planned))


@pytest.fixture
def recoveries(disturbed: Outcome) -> tuple[RecoveryRecord, ...]:
    return disturbed.summary.recoveries


def test_the_weights_are_those_of_the_undisturbed_run(disturbed: Outcome, undisturbed: Undisturbed) -> None:
    assert disturbed.status == 0, disturbed.output
    assert disturbed.summary.status == "finished"
    assert disturbed.summary.reason is None
    wanted = undisturbed("dp2tp2").summary
    assert wanted.state_digest is not None
    assert disturbed.summary.state_digest == wanted.state_digest
    assert disturbed.summary.reward == wanted.reward
    assert disturbed.summary.steps == wanted.steps


def test_every_fault_was_injected_once(disturbed: Outcome) -> None:
    assert [reason.partition(" in ")[0] for reason in disturbed.reasons("injected")] == [
        f"{place}: {case.kind}" for place, case in enumerate(CASES)
    ]


def test_every_loss_is_blamed_on_its_slots(recoveries: tuple[RecoveryRecord, ...]) -> None:
    found = [(one.cause.partition(":")[0], one.slots, one.phase) for one in recoveries]
    assert found == [(case.judged, case.slots or (case.slot,), case.seen_in) for case in LOSSES]


def test_every_loss_is_made_good_from_a_peer(recoveries: tuple[RecoveryRecord, ...]) -> None:
    assert {(one.plan, one.source, one.lost_steps) for one in recoveries} == {("substitute", "peer", 0)}
    assert [one.generation for one in recoveries] == list(range(1, len(LOSSES) + 1))


def test_the_parts_of_a_recovery_make_up_its_total(recoveries: tuple[RecoveryRecord, ...]) -> None:
    for one in recoveries:
        parts = [getattr(one.seconds, phase) for phase in RECOVERY_PHASES]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(one.seconds.total, rel=0.01, abs=0.05)
