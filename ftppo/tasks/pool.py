"""The processes that judge. Comes in: answers with their entries; goes out: a score for each, or why there is none.

They are outside Ray, so that whatever a function does, hang, crash or exit, it does to its own process: that one is
killed at the answer's deadline, and another takes its place. No verdict hangs on which process made it.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from ftppo.config_task import Judge
from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.judge import Word
from ftppo.tasks.wire import receive, send

TRIES = 2  # of an answer whose process died: the first time it may have been somebody else's doing
KILLED_S = 5.0  # within which a process that was killed is gone
STARTS = 3  # in a row that may fail once the function has been loaded


@dataclass(frozen=True)
class Failure:
    """Why an answer has no score, as a clause: "raised KeyError: 'level'"."""

    what: str


@dataclass
class _Process:
    """One process and what it is doing. `until`: when it must have spoken, on the monotonic clock."""

    process: subprocess.Popen[bytes]
    channel: socket.socket
    until: float
    ready: bool = False
    doing: int | None = None  # index of the answer


class JudgePool:
    """Up to `knobs.processes` processes that run one function, `options` given by name. Not thread-safe.

    Their end is `close`, or that of the driver, however it comes.
    """

    def __init__(self, key: str, path: str, options: dict[str, Any], knobs: Judge) -> None:
        """Raises ConfigError about `key` where there is no such function."""
        self._key, self._path, self._options, self._knobs = key, path, options, knobs
        self._processes: list[_Process] = []
        self._loaded, self._failed_starts = False, 0
        self._close = weakref.finalize(self, _end_all, self._processes)
        self._hire(1)
        with self._closing():
            while not self._loaded:
                for process, word in self._hear():
                    self._started(process, word)

    def judge(self, asked: Sequence[tuple[str, dict[str, Any]]]) -> list[float | Failure]:
        """A verdict on each (answer, entry), in their order. Raises TaskError where no process can be started."""
        verdicts: dict[int, float | Failure] = {}
        waiting, tries = deque(range(len(asked))), Counter[int]()
        with self._closing():
            while len(verdicts) < len(asked):
                self._hire(min(self._knobs.processes, len(asked) - len(verdicts)))
                self._give(waiting, asked)
                for process, word in self._hear():
                    index = process.doing
                    if index is None:
                        self._started(process, word)
                        continue
                    process.doing = None
                    kind, what = word
                    if kind == "score":
                        verdicts[index] = what
                        continue
                    if kind in ("died", "overdue"):
                        self._end(process)
                        tries[index] += 1
                        if kind == "died" and tries[index] < TRIES:
                            waiting.appendleft(index)
                            continue
                    verdicts[index] = Failure(what)
        return [verdicts[index] for index in range(len(asked))]

    def close(self) -> None:
        """End all processes. What is judged after that starts new ones."""
        _end_all(self._processes)

    def _hire(self, num: int) -> None:
        """As many processes as `num`. Who has died since its last answer makes room."""
        for one in list(self._processes):
            if one.ready and one.doing is None and one.process.poll() is not None:
                self._end(one)
        while len(self._processes) < num:
            ours, theirs = socket.socketpair()
            with theirs:
                command = [sys.executable, "-m", "ftppo.tasks.judge", str(theirs.fileno())]
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True
                )
            ours.settimeout(self._knobs.timeout_s)
            one = _Process(process, ours, time.monotonic() + self._knobs.start_s)
            self._processes.append(one)
            with contextlib.suppress(OSError):  # dead already: that is heard of
                send(ours, (self._path, self._options, self._knobs.memory_mb, sys.path))

    def _give(self, waiting: deque[int], asked: Sequence[tuple[str, dict[str, Any]]]) -> None:
        for process in self._processes:
            if waiting and process.ready and process.doing is None:
                process.doing = waiting.popleft()
                process.until = time.monotonic() + self._knobs.timeout_s
                with contextlib.suppress(OSError):
                    send(process.channel, asked[process.doing])

    def _hear(self) -> Iterator[tuple[_Process, Word]]:
        """What each of those that are to speak says next; waits until one does or is overdue."""
        speaking = [one for one in self._processes if one.doing is not None or not one.ready]
        patience_s = min(one.until for one in speaking) - time.monotonic()
        heard = wait([one.channel for one in speaking], max(patience_s, 0.0))
        for one in speaking:
            if one.channel in heard:
                yield one, _word(one.channel)
            elif one.until <= time.monotonic():
                yield one, ("overdue", f"took longer than judge.timeout_s={self._knobs.timeout_s:g}")

    def _started(self, process: _Process, word: Word) -> None:
        """A new process has spoken for the first time, or not at all."""
        kind, what = word
        if kind == "ready":
            process.ready = self._loaded = True
            self._failed_starts = 0
            return
        if kind == "refused":
            raise ConfigError(self._key, self._path, what)
        self._end(process)
        self._failed_starts += 1
        if not self._loaded or self._failed_starts == STARTS:
            how = what if kind == "died" else f"took longer than judge.start_s={self._knobs.start_s:g}"
            raise TaskError(f"{self._key}={self._path}: the process that is to run it {how} before it was ready")

    def _end(self, process: _Process) -> None:
        self._processes.remove(process)
        _end_all([process])

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """An error, or an interrupt, in the midst of it leaves no process with half an answer."""
        try:
            yield
        except BaseException:
            self.close()
            raise


def _word(channel: socket.socket) -> Word:
    try:
        kind, what = receive(channel)
    except (EOFError, OSError):
        return "died", "ended the process that judges"
    return (kind, f"ended the process that judges (exit code {what})") if kind == "died" else (kind, what)


def _end_all(processes: list[_Process]) -> None:
    while processes:
        one = processes.pop()
        one.channel.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(KILLED_S)
