"""The program as a process. Comes in: Hydra overrides; goes out: how it ended and what it has written."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from ftppo.config import Fault
from ftppo.driver.jsonfiles import read_lines
from ftppo.driver.record import Summary
from ftppo.driver.runfiles import EVENTS, METRICS, SUMMARY
from tests.sandbox import ROOT, Sandbox

DEADLINE_S = 240.0
POLL_S = 0.05


@dataclass(frozen=True)
class Outcome:
    """An ended run."""

    status: int  # as subprocess gives it: -9 is SIGKILL
    output: str
    folder: Path

    @cached_property
    def summary(self) -> Summary:
        """summary.json."""
        return read_summary(self.folder)

    def reasons(self, event: str) -> list[str]:
        """The reasons of all events of this kind."""
        return _reasons(self.folder, event)

    def rows(self, kind: str) -> list[dict[str, Any]]:
        """The lines of this kind in metrics.jsonl."""
        return [row for row in read_lines(self.folder / METRICS) if row["kind"] == kind]


class Program:
    """`python -m ftppo` with `overrides`, in a process group of its own. Leaving the context ends it."""

    def __init__(
        self,
        sandbox: Sandbox,
        runs: Path,
        *overrides: str,
        name: str = "run",
        environment: dict[str, str] | None = None,
        module: str = "ftppo",
    ) -> None:
        self._sandbox, self._log, self.folder = sandbox, runs / f"{name}.log", runs / name
        command = [sys.executable, "-m", module, *overrides, f"run.dir={runs}", f"run.name={name}"]
        with self._log.open("w") as log, _heeding_interrupts():
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment or sandbox.environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self._sandbox.end()
            self.process.wait()

    def wait(self, deadline_s: float = DEADLINE_S) -> Outcome:
        """Until it has ended. A run that takes longer is killed, with all that it has started."""
        try:
            status = self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.__exit__()
            raise AssertionError(f"not done in {deadline_s:g} s:\n{self.output}") from None
        return Outcome(status, self.output, self.folder)

    def wait_until[T](self, ask: Callable[[], T], what: str, deadline_s: float = DEADLINE_S) -> T:
        """The first answer of `ask` that is true; the program must not end before it."""
        until = time.monotonic() + deadline_s
        while not (answer := ask()):
            assert self.process.poll() is None, f"ended before {what}:\n{self.output}"
            assert time.monotonic() < until, f"not {what} in {deadline_s:g} s:\n{self.output}"
            time.sleep(POLL_S)
        return answer

    def steps(self) -> int:
        """Optimizer steps committed so far."""
        return self._rows("step")

    def iterations(self) -> int:
        """Iterations finished so far."""
        return self._rows("iteration")

    def _rows(self, kind: str) -> int:
        return sum(row["kind"] == kind for row in read_lines(self.folder / METRICS))

    def has(self, event: str) -> bool:
        """Whether there was an event of this kind."""
        return bool(self.reasons(event))

    def reasons(self, event: str) -> list[str]:
        """The reasons of all events of this kind so far."""
        return _reasons(self.folder, event)

    @property
    def output(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace")


@contextlib.contextmanager
def _heeding_interrupts() -> Iterator[None]:
    """A shell has its background jobs ignore SIGINT, and what they start inherits that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _reasons(folder: Path, event: str) -> list[str]:
    return [str(row["reason"]) for row in read_lines(folder / EVENTS) if row["event"] == event]


def run_program(sandbox: Sandbox, runs: Path, *overrides: str, name: str = "run") -> Outcome:
    """Start it and wait for its end."""
    with Program(sandbox, runs, *overrides, name=name) as program:
        return program.wait()


def read_summary(folder: Path) -> Summary:
    """The summary.json of a run's folder."""
    return Summary.from_row(json.loads((folder / SUMMARY).read_text()))


def faults(planned: Iterable[Fault]) -> str:
    """The override that injects `planned`."""
    entries = (", ".join(f"{key}: {value}" for key, value in fault.model_dump().items()) for fault in planned)
    return f"chaos.faults=[{', '.join(f'{{{entry}}}' for entry in entries)}]"
