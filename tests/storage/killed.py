"""`python -m tests.storage.killed URL [ENDPOINT]`: saves step after step in processes that kill themselves.

The operations of a save that reach the outside are numbered: requests to a server, calls to the system that change a
folder. The process that saves step n dies before or after one of them, each in turn; the next one looks at what is
there, saves step n again and goes on, until a save goes through. Comes out: a line of JSON for each step n, {"step": n,
"at": number of the operation, "after": whether it was done, "found": the step that loads afterwards}.
"""

import functools
import importlib
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from ftppo.storage import parts
from ftppo.storage.base import ObjectStore
from ftppo.storage.url import open_store
from tests.storage.saves import loaded, save

CHANGES = ("makedirs", "open", "pwrite", "fsync", "ftruncate", "replace", "link", "unlink")
MOST = 120  # operations of a save


class Gate:
    """Lets operations through up to number `at`, from 0: there the process dies, before or `after` it."""

    def __init__(self, at: int, after: bool) -> None:
        self.at, self.after, self.num_seen = at, after, 0

    def watch(self, owner: Any, name: str) -> None:
        """Have `owner.name` pass this gate."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            number, self.num_seen = self.num_seen, self.num_seen + 1
            self._die(number, after=False)
            try:
                return original(*args, **kwargs)
            finally:
                self._die(number, after=True)

        setattr(owner, name, watched)

    def watch_coroutine(self, owner: Any, name: str) -> None:
        """The same where it is to be awaited."""
        original = getattr(owner, name)

        @functools.wraps(original)
        async def watched(*args: Any, **kwargs: Any) -> Any:
            number, self.num_seen = self.num_seen, self.num_seen + 1
            self._die(number, after=False)
            try:
                return await original(*args, **kwargs)
            finally:
                self._die(number, after=True)

        setattr(owner, name, watched)

    def _die(self, number: int, after: bool) -> None:
        if (number, after) == (self.at, self.after):
            os.kill(os.getpid(), signal.SIGKILL)


def arm(gate: Gate, url: str) -> None:
    """Number what the store at `url` does from now on."""
    if url.startswith("s3://"):
        from botocore.httpsession import URLLib3Session

        gate.watch(URLLib3Session, "send")
    elif url.startswith("gs://"):
        from ftppo.storage import gcs

        gate.watch_coroutine(gcs._OneAttempt, "_request")
    else:
        for name in CHANGES:
            gate.watch(os, name)
        for name in ("sync_range", "_fallocate"):
            gate.watch(parts, name)


def main(url: str, endpoint: str | None) -> None:
    if "://" in url:  # imported here once, and not in each child; opened there, for a fork keeps no threads
        importlib.import_module({"s3": "ftppo.storage.s3", "gs": "ftppo.storage.gcs"}[url.partition("://")[0]])
    points = ((at, after) for at in range(MOST) for after in (False, True))
    before: dict[str, Any] | None = None
    for step, (at, after) in enumerate(points, start=2):
        status = _in_child(functools.partial(_go_on, url, endpoint, step, before, Gate(at, after)))
        if status == 0:  # the save had fewer operations
            return
        assert status == signal.SIGKILL, status
        before = {"at": at, "after": after}
    raise AssertionError(f"a save of more than {MOST} operations")


def _in_child(work: Callable[[], None]) -> int:
    """Run `work` in a process of its own; what became of it, as waitpid tells. Forked: it finds everything imported."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitpid(pid, 0)[1]


def _go_on(url: str, endpoint: str | None, step: int, before: dict[str, Any] | None, gate: Gate) -> None:
    store: ObjectStore = open_store(url, endpoint=endpoint)
    if before is None:
        save(store, step - 1)
    else:
        print(json.dumps({"step": step - 1, **before, "found": loaded(store)}))
        save(store, step - 1)
        sys.stdout.flush()
    arm(gate, url)
    save(store, step)
    assert loaded(store) == step


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)
