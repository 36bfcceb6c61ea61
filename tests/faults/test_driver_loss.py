"""On a cluster that is not the run's own the actors outlive their driver, and another one goes on from their memory."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.nodes import Nodes
from tests.faults.program import Outcome, Program, faults
from tests.sandbox import Sandbox, title_of

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SIGKILLED = -9
ACTOR = "ray::TrainActor"
GONE_S = 30.0


@pytest.fixture
def address(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> Iterator[str]:
    with contextlib.ExitStack() as stack:
        yield Nodes(tmp_path, environment, stack, on_head=4).address
    sandbox.end()
    sandbox.forget_files()


@pytest.mark.parametrize("phase", ["rollout", "update"])
def test_a_new_driver_goes_on_from_memory(
    sandbox: Sandbox,
    environment: dict[str, str],
    address: str,
    tmp_path: Path,
    undisturbed: Undisturbed,
    phase: str,
) -> None:
    kill = Fault.model_validate({"iteration": 3, "phase": phase, "kind": "kill_driver"})
    knobs = (f"cluster.address={address}", "cluster.standby=1", "recovery.orphan_s=60", faults([kill]))
    done = after_its_death(sandbox, tmp_path, knobs, environment)
    (takeover,) = done.summary.recoveries
    assert (takeover.plan, takeover.source, takeover.lost_steps) == ("restart", "peer", 0)
    assert (takeover.generation, done.reasons("resumed")) == (1, [])
    assert [row["iteration"] for row in done.rows("iteration")] == list(range(6))
    assert [row["step"] for row in done.rows("step")] == list(range(12))
    wanted = undisturbed("dp2").summary
    assert (done.summary.state_digest, done.summary.reward) == (wanted.state_digest, wanted.reward)
    assert actors(sandbox) == []


@pytest.mark.parametrize(
    ("fault", "knob"),
    [
        # The newest copies are of the fourth step, from before the iteration that had been finished.
        (Fault(iteration=3, phase="rollout", kind="kill_driver"), "snapshot.every_steps=4"),
        # All is done but the last checkpoint.
        (Fault(iteration=5, phase="save", kind="kill_driver"), "snapshot.every_steps=1"),
    ],
    ids=["copies behind the files", "in the last save"],
)
def test_what_the_last_driver_left_undone_is_done(
    sandbox: Sandbox,
    environment: dict[str, str],
    address: str,
    tmp_path: Path,
    undisturbed: Undisturbed,
    fault: Fault,
    knob: str,
) -> None:
    knobs = (f"cluster.address={address}", "recovery.orphan_s=60", knob, faults([fault]))
    done = after_its_death(sandbox, tmp_path, knobs, environment)
    (takeover,) = done.summary.recoveries
    assert (takeover.plan, takeover.source) == ("restart", "peer")
    assert done.summary.checkpoints[-1].step == 12
    assert done.summary.state_digest == undisturbed("dp2").summary.state_digest


def test_two_drivers_exclude_each_other_and_one_that_slept_does_no_harm(
    sandbox: Sandbox, environment: dict[str, str], address: str, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
    knobs = (f"checkpoint.url={tmp_path}/checkpoints", "recovery.orphan_s=120", "recovery.hang_s=240")
    common = (f"cluster.address={address}", *knobs)
    pause = faults([Fault(iteration=2, phase="rollout", slot=1, kind="sigstop")])  # to have time for what follows
    with Program(sandbox, here, *RECIPES["dp2 long"], *common, pause, environment=environment) as first:
        first.wait_until(lambda: first.iterations() >= 2, "at work")
        with (
            Program(sandbox, here, *RECIPES["dp2 long"], *common, environment=environment) as same_folder,
            Program(sandbox, elsewhere, *RECIPES["dp2 long"], *common, environment=environment) as other_machine,
        ):
            refused = [same_folder.wait(), other_machine.wait()]
        assert [one.status for one in refused] == [2, 1], refused
        assert all("another driver is at work" in one.output for one in refused), refused
        first.process.send_signal(signal.SIGSTOP)
        for actor in actors(sandbox):
            actor.resume()
        with Program(sandbox, elsewhere, *RECIPES["dp2 long"], *common, environment=environment) as second:
            second.wait_until(lambda: second.has("taken_over"), "taken over")
            second.wait_until(lambda: second.iterations() >= 1, "at work")
            first.process.send_signal(signal.SIGCONT)
            superseded, done = first.wait(), second.wait()
    assert superseded.status == 1 and "another driver has taken this run over" in superseded.output
    assert done.status == 0, done.output
    assert done.summary.state_digest == undisturbed("dp2 long").summary.state_digest


def test_orphans_end_themselves(sandbox: Sandbox, environment: dict[str, str], address: str, tmp_path: Path) -> None:
    kill = Fault(iteration=2, phase="update", kind="kill_driver")
    knobs = (f"cluster.address={address}", "recovery.orphan_s=3", faults([kill]))
    with Program(sandbox, tmp_path, *RECIPES["dp2"], *knobs, environment=environment) as first:
        assert first.wait().status == SIGKILLED, first.output
    assert len(actors(sandbox)) == 2
    until = time.monotonic() + GONE_S
    while actors(sandbox):
        assert time.monotonic() < until, actors(sandbox)
        time.sleep(0.2)


def after_its_death(sandbox: Sandbox, runs: Path, knobs: tuple[str, ...], environment: dict[str, str]) -> Outcome:
    """How the run ends that one driver began, which is killed, and another goes on with by the same command."""
    command = (*RECIPES["dp2"], *knobs)
    with Program(sandbox, runs, *command, environment=environment) as first:
        assert first.wait().status == SIGKILLED, first.output
    with Program(sandbox, runs, *command, environment=environment) as second:
        done = second.wait()
    assert done.status == 0, done.output
    return done


def actors(sandbox: Sandbox) -> list[psutil.Process]:
    """Training actors that are alive."""
    return [process for process in sandbox.processes() if title_of(process).startswith(ACTOR)]
