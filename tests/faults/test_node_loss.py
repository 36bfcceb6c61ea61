"""A cluster of several nodes loses one in the middle of a step."""

import contextlib
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftppo.config import Fault
from tests.faults.conftest import RECIPES, Undisturbed
from tests.faults.program import Program, faults
from tests.sandbox import Sandbox, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

UP_S, DOWN_S = 120.0, 60.0
POLL_S = 0.2
LOST = [Fault(iteration=2, phase="update.backward", slot=2, kind="kill_node")]


class Nodes:
    """A head node without processors of its own, and nodes of two processors each, as `ray start` makes them."""

    def __init__(self, folder: Path, environment: dict[str, str], stack: contextlib.ExitStack) -> None:
        self._folder, self._stack, self._num = folder, stack, 0
        self._environment = environment
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._start("--head", f"--port={port}", "--num-cpus=0", "--include-dashboard=false")

    def add(self) -> None:
        """One more node."""
        self._start(f"--address={self.address}", "--num-cpus=2")

    def _start(self, *arguments: str) -> None:
        log = self._folder / f"node-{self._num}.log"
        self._num += 1
        command = ["ray", "start", "--block", "--disable-usage-stats", "--object-store-memory=100000000"]
        command += ["--node-ip-address=127.0.0.1", *arguments]
        if "--head" in arguments:
            command.append(f"--temp-dir={self._environment['TMPDIR']}/ray")
        with log.open("w") as out:
            node = subprocess.Popen(command, env=self._environment, stdout=out, stderr=out, start_new_session=True)
        self._stack.callback(_end, node)
        _wait_for(log, node)


def _end(node: subprocess.Popen[bytes]) -> None:
    node.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        node.wait(DOWN_S)
    if node.poll() is None:
        node.send_signal(signal.SIGKILL)
        node.wait()


def _wait_for(log: Path, node: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + UP_S
    while "Ray runtime started" not in log.read_text():
        assert node.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(POLL_S)


@pytest.fixture
def environment(sandbox: Sandbox) -> dict[str, str]:
    # On a busy machine a node takes longer than the 30 s that Ray gives it.
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_raylet_start_wait_time_s": "120"}
    return sandbox.environment() | own


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
