"""A cluster of several nodes loses one in the middle of a step."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.nodes import Nodes
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOST = [Fault(iteration=2, phase="update.backward", slot=2, kind="kill_node")]


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
    knobs = (f"cluster.address={nodes.address}", "cluster.cpus_per_actor=1", "cluster.standby=2", faults(LOST))
    with Program(sandbox, tmp_path, *RECIPES["dp2tp2"], *knobs, environment=environment) as program:
        program.wait_until(lambda: program.has("recovered"), "recovered")
        done = program.wait()
    assert done.status == 0, done.output
    (recovery,) = done.summary.recoveries
    assert (recovery.slots, recovery.source, recovery.lost_steps) == ((2, 3), "peer", 0)
    assert recovery.cause.startswith("node_lost: slot 2")
    assert done.summary.state_digest == undisturbed("dp2tp2").summary.state_digest
