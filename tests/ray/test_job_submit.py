"""`ray job submit` as the README shows it: a head node of its own, the repository as working directory, a whole run."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

import pytest

from tests.sandbox import ROOT, Sandbox, free_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

UP_S, JOB_S, DOWN_S = 120.0, 240.0, 60.0
POLL_S = 0.2
PORTS = (
    "port",
    "dashboard-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "node-manager-port",
    "object-manager-port",
    "metrics-export-port",
    "runtime-env-agent-port",
    "ray-client-server-port",
)


@contextlib.contextmanager
def head_node(sandbox: Sandbox, environment: dict[str, str], log: Path) -> Iterator[str]:
    """A head node in the foreground, on ports that nobody else uses; the address of its dashboard."""
    ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
    command = ["ray", "start", "--head", "--block", "--num-cpus=2", "--disable-usage-stats", "--include-dashboard=true"]
    command += [f"--temp-dir={sandbox.folder / 'ray'}", "--object-store-memory=200000000"]
    command += [f"--{name}={port}" for name, port in ports.items()]
    with log.open("w") as out:
        head = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{ports['dashboard-port']}"
        _wait_for(f"{address}/api/version", head, log)
        yield address
    finally:
        head.terminate()  # this one's processes, where `ray stop` would end every cluster on the machine
        with contextlib.suppress(subprocess.TimeoutExpired):
            head.wait(DOWN_S)
        if head.poll() is None:
            os.killpg(head.pid, signal.SIGKILL)


def _wait_for(url: str, head: subprocess.Popen[bytes], log: Path) -> None:
    """Until there is any answer, be it that a token is wanted."""
    until = time.monotonic() + UP_S
    while True:
        assert head.poll() is None and time.monotonic() < until, log.read_text()
        try:
            urlopen(url, timeout=5).close()
        except HTTPError:
            return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(POLL_S)
        else:
            return


def test_a_submitted_job_trains_on_the_cluster(tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        # Without a token of our own Ray asks for that of ~/.ray, where there is one.
        environment = sandbox.environment() | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        with head_node(sandbox, environment, tmp_path / "head.log") as address:
            command = ["ray", "job", "submit", f"--address={address}", "--working-dir=.", "--"]
            command += ["python", "-m", "ftppo", "experiment=smoke", f"run.dir={tmp_path}"]
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=JOB_S, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
        assert sandbox.lasting() == []
        sandbox.forget_files()  # Ray's logs
    assert "succeeded" in done.stdout
    summary = json.loads((tmp_path / "smoke" / "summary.json").read_text())
    assert (summary["status"], summary["iterations"]) == ("finished", 2)
    assert f"report: {tmp_path / 'smoke' / 'report.html'}" in done.stdout
