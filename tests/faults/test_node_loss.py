"""A cluster of several nodes loses one in the middle of a step, or is told that one is about to go; another comes."""

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.nodes import Nodes, take_away
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOST = [Fault(iteration=2, phase="update.backward", slot=2, kind="kill_node")]
# Iterations that take their time, so that nodes and standbys can come and go meanwhile.
SLOWLY = [Fault(iteration=number, phase="rollout", slot=0, kind="slow", seconds=2.0) for number in range(3, 14)]
KNOBS = ("cluster.cpus_per_actor=1", "cluster.standby=2")


@pytest.fixture
def nodes(sandbox: Sandbox, environment: dict[str, str], tmp_path: Path) -> Iterator[Nodes]:
    with contextlib.ExitStack() as stack:
        own = Nodes(tmp_path, environment, stack)
        for _ in range(3):
            own.add()
        yield own
    sandbox.end()
    sandbox.forget_files()  # a node that was killed leaves its sockets


def test_standbys_on_another_node_take_over(
    sandbox: Sandbox, environment: dict[str, str], nodes: Nodes, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    command = (*RECIPES["dp2tp2"], f"cluster.address={nodes.address}", *KNOBS, faults(LOST))
    with Program(sandbox, tmp_path, *command, environment=environment) as program:
        program.wait_until(lambda: program.has("recovered"), "recovered")
        done = program.wait()
    assert done.status == 0, done.output
    (recovery,) = done.summary.recoveries
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((2, 3), "peer", 0)
    assert recovery.cause.startswith("node_lost: slot 2")
    assert done.summary.state_digest == undisturbed("dp2tp2").summary.state_digest


def test_a_node_in_place_of_one_that_went_gets_new_standbys(
    sandbox: Sandbox, environment: dict[str, str], nodes: Nodes, tmp_path: Path
) -> None:
    knobs = (f"cluster.address={nodes.address}", *KNOBS, "train.iterations=1000")
    with Program(sandbox, tmp_path, *RECIPES["dp2tp2"], *knobs, environment=environment) as program:
        program.wait_until(lambda: len(program.reasons("standby_ready")) == 2, "two standbys")
        gone = nodes.drain(place=1)
        program.wait_until(lambda: program.has("recovered"), "recovered")
        assert not program.has("standby_started"), "there is no place but on the node that is about to go"
        take_away(gone, sandbox)
        nodes.add()
        program.wait_until(lambda: "generation 1  standbys 2/2" in program.output, "two new standbys")
        program.process.send_signal(signal.SIGINT)
        done = program.wait()
    assert done.status == 130, done.output
    fresh = done.reasons("standby_started")[-2:]
    assert sorted(done.reasons("standby_ready")[-2:]) == sorted(fresh)


def test_slots_leave_a_node_that_is_about_to_go(
    sandbox: Sandbox, environment: dict[str, str], nodes: Nodes, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    command = (*RECIPES["dp2tp2"], f"cluster.address={nodes.address}", *KNOBS, faults(SLOWLY))
    with Program(sandbox, tmp_path, *command, environment=environment) as program:
        program.wait_until(lambda: len(program.reasons("standby_ready")) == 2, "two standbys")
        nodes.drain(place=1)
        done = program.wait()
    assert done.status == 0, done.output
    (recovery,) = done.summary.recoveries
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((2, 3), "peer", 0)
    assert recovery.cause.startswith("preempted: slot 2 (dp 1, tp 0): told to leave: its node is about to go")
    (said,) = done.reasons("node_draining")
    assert said.endswith("is about to go, with slots 2, 3")
    assert done.summary.state_digest == undisturbed("dp2tp2").summary.state_digest
