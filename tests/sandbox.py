"""Where tests start whole programs and Ray clusters. Comes in: nothing; goes out: an environment for what is started.

What was started is known by a mark in its environment, whoever its parent is by now; temporary files go to one folder.
Closing a sandbox ends what is left in it and fails for it.
"""

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import uuid
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parents[1]
GOODBYE_S = 30.0  # Ray's processes end by themselves after their driver has
RAYS_AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")  # where it was killed, these take a minute

_MARK = "FTPPO_TEST_SANDBOX"
_SESSION = uuid.uuid4().hex[:8]


class Sandbox:
    """One mark, one folder. The folder's path is short, for it is to hold sockets."""

    def __init__(self) -> None:
        self._mark = f"{_SESSION}-{uuid.uuid4().hex[:8]}"
        self.folder = Path(tempfile.mkdtemp(prefix=_folder_prefix()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        left = [*self.lasting(), *map(str, self.files())]
        self.end()
        shutil.rmtree(self.folder)
        assert any(raised) or not left, f"left behind: {left}"

    def environment(self) -> dict[str, str]:
        """That of this process, with the mark; nothing in it leads to a cluster that is not the test's own."""
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return inherited | {"PATH": path} | self._own_environment()

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What this process starts meanwhile is marked, and its temporary files are in the folder."""
        mine = self._own_environment()
        before = {key: os.environ.get(key) for key in mine}
        os.environ.update(mine)
        tempfile.tempdir = str(self.folder)
        try:
            yield
        finally:
            tempfile.tempdir = None  # to be found anew
            for key, value in before.items():
                if value is None:
                    del os.environ[key]
                else:
                    os.environ[key] = value

    def _own_environment(self) -> dict[str, str]:
        # Ray's workers write their titles over what they have of the environment unless told not to.
        return {_MARK: self._mark, "SPT_NOENV": "1", "TMPDIR": str(self.folder)}

    def processes(self) -> list[psutil.Process]:
        """All that was started with the mark and is alive."""
        return _marked(self._mark)

    def titles(self) -> list[str]:
        """What the processes that are alive call themselves."""
        return [title_of(process) for process in self.processes()]

    def lasting(self, apart_from: Collection[str] = ()) -> list[str]:
        """What is alive although nobody needs it any more, but for processes of these titles."""
        return _lasting(self._mark, apart_from)

    def files(self) -> list[Path]:
        """Temporary files that are there, but for the empty cache folder that torch makes when it is imported."""
        return [path for path in self.folder.iterdir() if not path.name.startswith("torchinductor_")]

    def end(self) -> None:
        """Kill whatever is alive."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(self.processes(), timeout=GOODBYE_S)

    def forget_files(self) -> None:
        """Take away what a killed program could not."""
        for path in self.files():
            shutil.rmtree(path)


def strays() -> list[str]:
    """What this test session has started and not ended, folders included."""
    folders = Path(tempfile.gettempdir()).glob(f"{_folder_prefix()}*")
    return [*_lasting(_SESSION), *(f"folder {path}" for path in folders)]


def free_ports(num: int) -> list[int]:
    """TCP ports that nobody listens on now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(num)]
        return [one.getsockname()[1] for one in sockets]


def _folder_prefix() -> str:
    return f"ft{_SESSION[:4]}-"


def _marked(beginning: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _mark_of(process).startswith(beginning)]


def _mark_of(process: psutil.Process) -> str:
    try:
        return process.environ().get(_MARK, "") if process.pid != os.getpid() else ""
    except (psutil.Error, OSError):  # gone, a zombie, or somebody else's
        return ""


def _lasting(beginning: str, apart_from: Collection[str] = ()) -> list[str]:
    candidates = [process for process in _marked(beginning) if title_of(process) not in apart_from]
    _, alive = psutil.wait_procs(candidates, timeout=GOODBYE_S)
    return [f"process {process.pid} {title_of(process)[:100]}" for process in alive]


def title_of(process: psutil.Process) -> str:
    """What a process calls itself; nothing where it is gone."""
    try:
        return " ".join(process.cmdline()).strip()
    except psutil.NoSuchProcess:
        return ""
