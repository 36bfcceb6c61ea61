"""What a person sees while a run goes on. Comes in: phases, iterations, faults as they happen; goes out: a live panel
on a terminal, plain lines elsewhere. The last line of a run says where its report is.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TextIO

from ftppo.checkpoint.tables import size
from ftppo.clock import Clock
from ftppo.driver.record import IterationMetrics, RecoveryRecord, Summary
from ftppo.driver.text import count, duration, number, recovery_title, spans

_BAR_WIDTH = 40


@dataclass(frozen=True)
class Fleet:
    """Who is at work: the generation, and how many of the standbys are warm."""

    generation: int = 0
    standby_warm: int = 0
    standby_total: int = 0


@dataclass(frozen=True)
class IterationView:
    """A finished iteration and the fleet that ran it."""

    metrics: IterationMetrics
    fleet: Fleet


class Display(Protocol):
    """All calls return at once and may come from any thread. A caller stops it in a `finally`, Ctrl-C or not."""

    def start(self, title: str, total_iterations: int, done: int = 0) -> None:
        """A run named `title` begins; `done` iterations are behind it where it was resumed."""
        ...

    def phase(self, name: str, detail: str = "") -> None:
        """The run is now in phase `name`; `detail` is how far in it, e.g. "step 2/4"."""
        ...

    def fleet(self, fleet: Fleet) -> None:
        """The generation or the standbys have changed."""
        ...

    def iteration(self, view: IterationView) -> None:
        """An iteration has finished."""
        ...

    def event(self, text: str) -> None:
        """Something a person wants to know, in one line."""
        ...

    def recovery(self, record: RecoveryRecord) -> None:
        """A recovery is over: show what it consisted of."""
        ...

    def finish(self, summary: Summary, report: Path) -> None:
        """The run is over: show its outcome, and the path of its report last. Stops the display."""
        ...

    def stop(self) -> None:
        """Give the terminal back as it was; again does nothing."""
        ...


class PlainDisplay:
    """A line for each iteration and each event, flushed at once: for files, pipes and logs."""

    def __init__(self, clock: Clock, stream: TextIO) -> None:
        self._clock = clock
        self._stream = stream
        self._total = 0
        self._last = clock.monotonic()

    def start(self, title: str, total_iterations: int, done: int = 0) -> None:
        self._total = total_iterations
        self._last = self._clock.monotonic()
        self._line(f"{title}: {count(total_iterations, 'iteration')}" + (f", {done} of them done" if done else ""))

    def phase(self, name: str, detail: str = "") -> None:
        pass  # a line a phase would drown the iterations

    def fleet(self, fleet: Fleet) -> None:
        pass  # shown with the next iteration

    def iteration(self, view: IterationView) -> None:
        now = self._clock.monotonic()
        metrics, fleet = view.metrics, view.fleet
        width = len(str(self._total))
        self._line(
            f"[{metrics.iteration + 1:{width}}/{self._total}] reward {number(metrics.reward_mean)}"
            f"  kl {number(metrics.kl)}  {number(metrics.tokens_per_s)} tokens/s  generation {fleet.generation}"
            f"  standbys {fleet.standby_warm}/{fleet.standby_total}  {duration(now - self._last)}"
        )
        self._last = now

    def event(self, text: str) -> None:
        self._line(f"* {text}")

    def recovery(self, record: RecoveryRecord) -> None:
        self._line(f"* recovered in {duration(record.seconds.total)}: {recovery_title(record)}")
        for span in spans(record.seconds):
            start = round(span.start * _BAR_WIDTH)
            bar = "#" * (round((span.start + span.share) * _BAR_WIDTH) - start)
            self._line(f"    {span.phase:<10} {duration(span.seconds):>8}  {' ' * start}{bar}".rstrip())

    def finish(self, summary: Summary, report: Path) -> None:
        self._line("")
        for name, value in outcome(summary):
            self._line(f"{name:<12} {value}")
        self._line(f"report: {report}")

    def stop(self) -> None:
        pass  # there is nothing to give back

    def _line(self, text: str) -> None:
        encoding = self._stream.encoding or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), file=self._stream, flush=True)


def outcome(summary: Summary) -> list[tuple[str, str]]:
    """Names and values of the table that closes a run."""
    reason = f": {summary.reason}" if summary.reason else ""
    rows = [
        ("status", summary.status + reason),
        ("layout", f"{summary.layout}, {count(summary.standby, 'standby')}"),
        ("work", f"{count(summary.iterations, 'iteration')}, {count(summary.steps, 'optimizer step')}"),
        ("reward", f"{number(summary.reward.first)} → {number(summary.reward.last)}"),
    ]
    if summary.recoveries:
        longest = max(record.seconds.total for record in summary.recoveries)
        rows.append(("recoveries", f"{len(summary.recoveries)}, the longest {duration(longest)}"))
    if summary.checkpoints:
        newest = summary.checkpoints[-1]
        where = f"the newest at step {newest.step}, {size(newest.bytes)}, {newest.uri}"
        rows.append(("checkpoints", f"{len(summary.checkpoints)}, {where}"))
    if summary.state_digest:
        rows.append(("state", f"sha256 {summary.state_digest}"))
    return rows


def make_display(mode: Literal["auto", "rich", "plain"], clock: Clock, stream: TextIO | None = None) -> Display:
    """The display for `stream` (standard output); "auto" is live on a terminal and plain elsewhere."""
    stream = stream or sys.stdout
    if mode == "plain" or (mode == "auto" and not stream.isatty()):
        return PlainDisplay(clock, stream)
    from ftppo.driver.live import RichDisplay  # here: rich is not wanted where nobody looks

    return RichDisplay(clock, stream)
