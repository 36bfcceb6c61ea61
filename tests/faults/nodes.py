"""A Ray cluster that is not the run's own. Comes in: how many nodes; goes out: its address."""

import contextlib
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.sandbox import ROOT, Sandbox, free_ports

UP_S, DOWN_S = 120.0, 60.0
POLL_S = 0.2


class Nodes:
    """A head node with `on_head` processors, and nodes of two processors each, as `ray start` makes them."""

    def __init__(
        self, folder: Path, environment: dict[str, str], stack: contextlib.ExitStack, on_head: int = 0
    ) -> None:
        self._folder, self._stack, self._num = folder, stack, 0
        self._environment = environment
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self._start("--head", f"--port={port}", f"--num-cpus={on_head}", "--include-dashboard=false")

    def add(self) -> None:
        """One more node."""
        self._start(f"--address={self.address}", "--num-cpus=2")

    def drain(self, place: int) -> str:
        """Give notice to the node at this place in the order of slots. Returns its id."""
        command = [sys.executable, "-m", "tests.faults.drain", self.address, str(place)]
        done = subprocess.run(
            command, cwd=ROOT, env=self._environment, check=True, timeout=DOWN_S, stdout=subprocess.PIPE, text=True
        )
        return done.stdout.strip()

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


def take_away(node: str, sandbox: Sandbox) -> None:
    """End the node with this id without a word more."""
    for process in sandbox.processes():
        if f"--node_id={node}" in process.cmdline():
            process.kill()


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


def cluster_environment(sandbox: Sandbox) -> dict[str, str]:
    """For all that takes part in it."""
    # On a busy machine a node takes longer than the 30 s that Ray gives it.
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_raylet_start_wait_time_s": "120"}
    return sandbox.environment() | own
