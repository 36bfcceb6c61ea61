"""The folder store, killed at each of its calls to the system in turn."""

import subprocess
import sys
from pathlib import Path

from ftppo.storage.local import LocalStore

KILLED = """
import os, signal, sys
from pathlib import Path
from ftppo.storage.local import LocalStore

calls = 0

def trap(name, at):
    original = getattr(os, name)
    def counted(*args, **kwargs):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*args, **kwargs)
    setattr(os, name, counted)

def write(root, at):
    for name in ("makedirs", "pwrite", "fsync", "replace", "link"):
        trap(name, at)
    store = LocalStore(Path(root))
    store.put("s/data", b"new" * 1000)
    store.create("s/manifest", b"new")
    os._exit(0)

for at in range(1, 40):
    pid = os.fork() or write(f"{sys.argv[1]}/{at}", at)
    if os.waitpid(pid, 0)[1] == 0:
        break
print(at)
"""


def test_a_kill_at_any_step_leaves_old_or_new_and_never_half(tmp_path: Path) -> None:
    stores = {at: LocalStore(tmp_path / str(at)) for at in range(1, 40)}
    for store in stores.values():
        store.put("s/data", b"old")
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[2], timeout=60, capture_output=True, text=True, check=True
    )
    let_through, outcomes = int(done.stdout), set()
    for at in range(1, let_through + 1):
        store = stores[at]
        found = {info.key: store.get(info.key) for info in store.list()}
        assert set(found) <= {"s/data", "s/manifest"}
        assert found["s/data"] in (b"old", b"new" * 1000)
        if "s/manifest" in found:
            assert found == {"s/data": b"new" * 1000, "s/manifest": b"new"}
        outcomes.add((found["s/data"][:3], "s/manifest" in found))
        store.sweep_uploads("", -1.0)
        assert sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*")) == [
            "s",
            *sorted(found),
        ]
    assert let_through == 9  # two writes, each: bytes, sync, name, sync; and the one that nothing stopped
    assert outcomes == {(b"old", False), (b"new", False), (b"new", True)}
