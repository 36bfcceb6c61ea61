"""The live panel on a terminal. Comes in: the calls of Display; goes out: a panel that is redrawn in place, and above
it the lines that stay: faults, recoveries and, at the end, the outcome.
"""

import atexit
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from ftppo.clock import Clock
from ftppo.driver.display import Fleet, IterationView, outcome
from ftppo.driver.record import IterationMetrics, RecoveryRecord, Summary
from ftppo.driver.text import duration, number, recovery_title, spans, sparkline

_BAR_WIDTH = 40
_WIDEST = 100
_COLOURS = {
    "detect": "red",
    "fence": "dark_orange",
    "promote": "yellow",
    "groups": "cyan",
    "state": "blue",
    "first step": "green",
}


class RichDisplay:
    """Display of a terminal. Ctrl-C anywhere leaves a working terminal behind: `stop` runs at exit at the latest."""

    def __init__(self, clock: Clock, stream: TextIO) -> None:
        self._clock = clock
        self._console = Console(file=stream, force_terminal=True, highlight=False)
        self._live: Live | None = None
        self._title = ""
        self._total = self._first = self._done = 0
        self._started = self._phase_since = clock.monotonic()
        self._phase, self._detail = "starting", ""
        self._fleet = Fleet()
        self._metrics: IterationMetrics | None = None
        self._rewards: dict[int, float | None] = {}
        self._spinner = Spinner("dots", style="cyan")

    def start(self, title: str, total_iterations: int, done: int = 0) -> None:
        self._title, self._total, self._first, self._done = title, total_iterations, done, done
        self._started = self._phase_since = self._clock.monotonic()
        self._live = Live(console=self._console, get_renderable=self._panel, refresh_per_second=8, transient=True)
        atexit.register(self.stop)
        self._live.start()

    def phase(self, name: str, detail: str = "") -> None:
        if name != self._phase:
            self._phase_since = self._clock.monotonic()
        self._phase, self._detail = name, detail

    def fleet(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def iteration(self, view: IterationView) -> None:
        self._metrics, self._fleet = view.metrics, view.fleet
        self._done = view.metrics.iteration + 1
        self._rewards[view.metrics.iteration] = view.metrics.reward_mean

    def event(self, text: str) -> None:
        self._log("yellow", Text(text))

    def recovery(self, record: RecoveryRecord) -> None:
        took = duration(record.seconds.total)
        self._log("green", Text.assemble((f"recovered in {took}", "bold green"), f"  {recovery_title(record)}"))
        for span in spans(record.seconds):
            start = round(span.start * _BAR_WIDTH)
            width = max(1, round((span.start + span.share) * _BAR_WIDTH) - start) if span.seconds else 0
            bar = Text(" " * start + "━" * width, style=_COLOURS.get(span.phase, "white"))
            self._console.print(Text(f"{'':11}{span.phase:<11}{duration(span.seconds):>8}  ").append_text(bar))

    def finish(self, summary: Summary, report: Path) -> None:
        self.stop()
        good = summary.status == "finished"
        table = Table(box=box.ROUNDED, show_header=False, border_style="green" if good else "red", pad_edge=True)
        table.add_column(style="dim")
        table.add_column(overflow="fold")
        for name, value in outcome(summary):
            style = ("bold green" if good else "bold red") if name == "status" else ""
            table.add_row(name, Text(value, style=style))
        self._console.print(table)
        # Unwrapped, so that the path can be clicked or copied whole.
        self._console.print(Text(f"report: {report}"), soft_wrap=True)

    def stop(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(self.stop)

    def _log(self, colour: str, text: Text) -> None:
        """A line that stays, above the panel; where it must be wrapped it keeps its indent."""
        row = Table.grid(padding=(0, 1))
        row.add_column(width=8, justify="right", style="dim")
        row.add_column(width=1, style=colour)
        row.add_column(overflow="fold")
        row.add_row(duration(self._clock.monotonic() - self._started), "●", text)
        self._console.print(row)

    def _panel(self) -> RenderableType:
        """The panel as it stands now; drawn again and again by Live's thread."""
        return Panel(
            Group(*self._rows()),
            title=Text(self._title, style="bold"),
            title_align="left",
            border_style="cyan",
            width=min(_WIDEST, self._console.width),
        )

    def _rows(self) -> Iterator[RenderableType]:
        metrics = self._metrics
        yield self._progress()
        yield self._now()
        if metrics is not None:
            rewards = [self._rewards[key] for key in sorted(self._rewards)]
            course = sparkline(rewards, max(8, min(_WIDEST, self._console.width) - 30))
            yield _pairs(("reward", number(metrics.reward_mean))).append(course, "cyan")
            rate = number(metrics.tokens_per_s)
            yield _pairs(("kl", number(metrics.kl)), ("tokens/s", rate), ("step", f"{metrics.step:,}"))
        fleet = self._fleet
        standbys = f"{fleet.standby_warm}/{fleet.standby_total} warm" if fleet.standby_total else "none"
        yield _pairs(("generation", str(fleet.generation)), ("standbys", standbys))

    def _progress(self) -> RenderableType:
        row = Table.grid(padding=(0, 1), expand=True)
        row.add_column(no_wrap=True)
        row.add_column(ratio=1)
        row.add_column(justify="right", no_wrap=True)
        label = Text.assemble("iteration ", (f"{self._done}/{self._total}", "bold"))
        bar = ProgressBar(total=self._total, completed=self._done, complete_style="cyan", finished_style="green")
        row.add_row(label, bar, Text(self._times(), style="dim"))
        return row

    def _times(self) -> str:
        elapsed = self._clock.monotonic() - self._started
        here, left = self._done - self._first, self._total - self._done
        return duration(elapsed) + (f", {duration(elapsed / here * left)} left" if here > 0 and left > 0 else "")

    def _now(self) -> RenderableType:
        since = duration(self._clock.monotonic() - self._phase_since)
        detail = f" {self._detail}" if self._detail else ""
        text = Text.assemble((self._phase, "bold cyan"), detail, (f"  {since}", "dim"))
        self._spinner.update(text=text)
        return self._spinner


def _pairs(*pairs: tuple[str, str]) -> Text:
    """Names and values in one line; what does not fit is cut, so that the panel keeps its height."""
    text = Text(no_wrap=True, overflow="ellipsis")
    for name, value in pairs:
        text.append(f"{name} ", "dim").append(value, "bold").append("   ")
    return text
