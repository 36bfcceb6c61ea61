"""What a person sees: lines in a pipe, a panel on a terminal, and a terminal that works afterwards."""

import io
import os
import pty
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from ftppo.clock import FakeClock
from ftppo.driver.display import Display, Fleet, IterationView, PlainDisplay, make_display
from ftppo.driver.live import RichDisplay
from ftppo.driver.record import IterationMetrics, RecoveryRecord, Summary

VIEW = IterationView(IterationMetrics(0, 4, reward_mean=0.25, kl=0.01, tokens_per_s=800.0), Fleet(2, 1, 3))


class Stream(io.StringIO):
    """Counts flushes."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def play(display: Display, recovery: RecoveryRecord, summary: Summary) -> None:
    display.start("sample · dp 2", total_iterations=8, done=0)
    display.fleet(Fleet(1, 0, 3))
    display.phase("rollout")
    display.event("fault: slot 3 crash [in update]")
    display.recovery(recovery)
    display.iteration(VIEW)
    display.finish(summary, Path("runs/sample/report.html"))
    display.stop()
    display.stop()


def test_plain_writes_one_flushed_line_an_iteration(peer_recovery: RecoveryRecord, summary: Summary) -> None:
    stream = Stream()
    play(PlainDisplay(FakeClock(), stream), peer_recovery, summary)
    lines = stream.getvalue().splitlines()
    assert stream.flushes == len(lines)
    (line,) = [line for line in lines if line.startswith("[1/8]")]
    for part in ("reward 0.250", "kl 0.0100", "800 tokens/s", "generation 2", "standbys 1/3"):
        assert part in line
    assert "* fault: slot 3 crash [in update]" in lines
    assert sum("groups" in line and "#" in line for line in lines) == 1
    assert lines[-1] == "report: runs/sample/report.html"
    assert "\x1b" not in stream.getvalue()


def test_plain_survives_a_stream_that_cannot_write_every_character(summary: Summary) -> None:
    raw = io.BytesIO()
    display = PlainDisplay(FakeClock(), io.TextIOWrapper(raw, encoding="ascii"))
    display.event("Zürich →")
    assert raw.getvalue() == b"* Z?rich ?\n"


def test_a_failed_run_says_why(summary: Summary) -> None:
    stream = io.StringIO()
    failed = replace(summary, status="failed", reason="no standby is left", state_digest=None)
    PlainDisplay(FakeClock(), stream).finish(failed, Path("r.html"))
    assert "failed: no standby is left" in stream.getvalue()


def test_rich_shows_all_and_gives_the_cursor_back(peer_recovery: RecoveryRecord, summary: Summary) -> None:
    stream = io.StringIO()
    play(RichDisplay(FakeClock(), stream), peer_recovery, summary)
    text = stream.getvalue()
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1
    for part in ("fault: slot 3 crash [in update]", "recovered in 3.00 s", "first step", "no steps run again"):
        assert part in text
    assert text.rstrip().splitlines()[-1] == "report: runs/sample/report.html"


def test_the_panel_keeps_its_height_and_fits_a_narrow_terminal() -> None:
    display = RichDisplay(FakeClock(), io.StringIO())
    display._console = Console(file=io.StringIO(), width=40, force_terminal=True, color_system=None)
    for iteration in range(200):
        display.iteration(
            replace(VIEW, metrics=replace(VIEW.metrics, iteration=iteration, reward_mean=iteration / 200))
        )
    lines = display._console.render_lines(display._panel())
    text = ["".join(segment.text for segment in line) for line in lines]
    assert len(text) == 7
    assert all(len(line) == 40 for line in text)
    assert any("▁" in line and "█" in line for line in text)


@pytest.mark.parametrize(("mode", "kind"), [("auto", PlainDisplay), ("plain", PlainDisplay), ("rich", RichDisplay)])
def test_make_display_off_a_terminal(mode: str, kind: type) -> None:
    assert isinstance(make_display(mode, FakeClock(), io.StringIO()), kind)  # type: ignore[arg-type]


def test_ctrl_c_on_a_terminal_leaves_it_working() -> None:
    code = """
import os, signal
from ftppo.clock import SystemClock
from ftppo.driver.display import make_display
make_display("auto", SystemClock()).start("sample", 8)
os.kill(os.getpid(), signal.SIGINT)
"""
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm"}
    process = subprocess.Popen([sys.executable, "-c", code], stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    text = b""
    try:
        while chunk := os.read(ours, 4096):
            text += chunk
    except OSError:
        pass  # Linux's way to say that the other end is closed
    finally:
        os.close(ours)
    process.wait(timeout=30)
    assert b"\x1b[?25l" in text
    assert text.rfind(b"\x1b[?25h") > text.rfind(b"\x1b[?25l")
