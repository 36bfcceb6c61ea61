"""A mesh of local processes without Ray: each runs functions of a test module on its own Engine.

Processes are forked from a server that has imported everything once, so eight of them start in a moment.
"""

import multiprocessing as mp
import pickle
import traceback
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

DEADLINE_S = 60.0

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["tests.process.preload"])


class RankFailed(Exception):
    """A function raised in a process of the mesh, or the process died."""


class Mesh:
    """Numbered processes; they start when a call needs them, and keep a `context` dictionary between calls."""

    starter: Any = _context  # of processes

    def __init__(self, deadline_s: float = DEADLINE_S) -> None:
        self.deadline_s = deadline_s
        self.connections: list[Connection] = []
        self.processes: list[Any] = []

    def run(self, ranks: Iterable[int], function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call `function(context, rank, *args)` on `ranks` at once; results in their order."""
        chosen = list(ranks)
        self.start(chosen, function, *args)
        return self.finish(chosen)

    def start(self, ranks: Sequence[int], function: Callable[..., Any], *args: Any) -> None:
        """Begin a call without waiting for it."""
        while len(self.processes) <= max(ranks):
            self._add(len(self.processes))
        for rank in ranks:
            self.connections[rank].send_bytes(_packed((function, rank, args)))

    def finish(self, ranks: Sequence[int]) -> list[Any]:
        """Wait for the calls begun last. One that fails ends all processes, for its peers may wait for it."""
        results: dict[int, Any] = {}
        while len(results) < len(ranks):
            pending = {id(self.connections[rank]): rank for rank in ranks if rank not in results}
            ready = wait([self.connections[rank] for rank in pending.values()], timeout=self.deadline_s)
            if not ready:
                self.close()
                raise RankFailed(f"ranks {sorted(pending.values())} did not answer within {self.deadline_s} s")
            for connection in ready:
                rank = pending[id(connection)]
                try:
                    done, results[rank] = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    done, results[rank] = False, "died"
                if not done:
                    self.close()
                    raise RankFailed(f"rank {rank}: {results[rank]}")
        return [results[rank] for rank in ranks]

    def replace(self, rank: int) -> int:
        """Put a fresh process where one has died; returns the exit code of the old one."""
        self.processes[rank].join(DEADLINE_S)
        code = self.processes[rank].exitcode
        assert code is not None, f"rank {rank} lives"
        self.connections[rank].close()
        self._add(rank)
        return int(code)

    def close(self) -> None:
        """End all processes. The next call starts fresh ones."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(DEADLINE_S)
        for connection in self.connections:
            connection.close()
        self.processes, self.connections = [], []

    def _add(self, rank: int) -> None:
        here, there = self.starter.Pipe()
        process = self.starter.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        self.processes[rank : rank + 1] = [process]
        self.connections[rank : rank + 1] = [here]


def _packed(message: Any) -> bytes:
    # Plain pickle: torch would have `send` pass tensors through shared memory, with threads and files of its own.
    return pickle.dumps(message)


def _serve(connection: Connection) -> None:
    context: dict[str, Any] = {}
    while True:
        try:
            function, rank, args = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            answer = _packed((True, function(context, rank, *args)))
        except Exception:
            answer = _packed((False, traceback.format_exc()))
        connection.send_bytes(answer)
