"""Time as an argument: code that waits or measures takes a Clock, tests hand it a fake one."""

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds and sleep."""

    def now(self) -> float:
        """Seconds since the epoch, comparable between machines with synchronised clocks."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back, for durations within one process."""
        ...

    def sleep(self, seconds: float) -> None:
        """Let `seconds` pass."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class FakeClock:
    """A clock that moves only when told to or slept on."""

    def __init__(self, start: float = 0.0) -> None:
        self.time = start
        self.slept: list[float] = []

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass without a sleeper."""
        self.time += seconds
