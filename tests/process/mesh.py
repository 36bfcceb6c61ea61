"""A mesh of local processes without Ray: each runs functions of a test module on its own Engine.

Processes are forked from a server that has imported everything once, so eight of them start in a moment.
"""

import multiprocessing as mp
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

DEADLINE_S = 120.0

_context = mp.get_context("forkserver")
_context.set_forkserver_preload(["tests.process.preload"])


class RankFailed(Exception):
    """A function raised in a process of the mesh."""


class Mesh:
    """Up to `size` processes; `run` uses the first `num` of them."""

    def __init__(self, size: int) -> None:
        self.connections: list[Connection] = []
        self.processes: list[Any] = []
        self.grow(size)

    def grow(self, size: int) -> None:
        """Have at least `size` processes."""
        while len(self.processes) < size:
            here, there = _context.Pipe()
            process = _context.Process(target=_serve, args=(there,), daemon=True)
            process.start()
            there.close()
            self.connections.append(here)
            self.processes.append(process)

    def run(self, num: int, function: Callable[..., Any], *args: Any, ranks: list[int] | None = None) -> list[Any]:
        """Call `function(context, rank, *args)` on `num` processes at once; results in rank order."""
        self.start(num, function, *args, ranks=ranks)
        return self.finish(num, ranks=ranks)

    def start(self, num: int, function: Callable[..., Any], *args: Any, ranks: list[int] | None = None) -> None:
        """Begin a call without waiting for it."""
        self.grow(num)
        for rank in ranks or range(num):
            self.connections[rank].send((function, rank, args))

    def finish(self, num: int, ranks: list[int] | None = None) -> list[Any]:
        """Wait for the calls begun last."""
        results: dict[int, Any] = {}
        pending = {id(self.connections[rank]): rank for rank in ranks or range(num)}
        while pending:
            ready = wait([self.connections[rank] for rank in pending.values()], timeout=DEADLINE_S)
            assert ready, f"ranks {sorted(pending.values())} did not answer within {DEADLINE_S} s"
            for connection in ready:
                rank = pending.pop(id(connection))
                ok, value = connection.recv()  # type: ignore[union-attr]
                if not ok:
                    self.close()
                    raise RankFailed(f"rank {rank}:\n{value}")
                results[rank] = value
        return [results[rank] for rank in sorted(results)]

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.join(10)
        for connection in self.connections:
            connection.close()
        self.processes, self.connections = [], []


def _serve(connection: Connection) -> None:
    context: dict[str, Any] = {}
    while True:
        try:
            function, rank, args = connection.recv()
        except EOFError:
            return
        try:
            connection.send((True, function(context, rank, *args)))
        except Exception:
            connection.send((False, traceback.format_exc()))
