"""Numbers as a person reads them."""

import pytest

from ftppo.driver.record import RecoverySeconds
from ftppo.driver.text import count, duration, number, spans, sparkline


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (float("nan"), "–"), (float("inf"), "–"), (0.0, "0"), (0.4312, "0.431"), (-0.0185, "-0.0185"),
        (12.345, "12.3"), (1234567.0, "1,234,567"), (3e-6, "3.00e-06"), (5e12, "5.00e+12"),
    ],
)  # fmt: skip
def test_number(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "–"), (0.0, "0 s"), (0.012, "12 ms"), (0.0999, "0.10 s"), (3.417, "3.42 s"), (9.999, "10.0 s"),
        (99.6, "1:40"), (3725.0, "1:02:05"),
    ],
)  # fmt: skip
def test_duration(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text


def test_count() -> None:
    assert [count(0, "step"), count(1, "step"), count(2, "step")] == ["no steps", "1 step", "2 steps"]


def test_sparkline_spans_the_range_and_leaves_blanks() -> None:
    assert sparkline([0.0, None, 0.5, 1.0, float("nan")], width=9) == "▁ ▅█ "
    assert sparkline([2.0, 2.0], width=9) == "▅▅"
    assert sparkline([], width=9) == sparkline([None], width=9) == sparkline([1.0], width=0) == ""


def test_sparkline_averages_what_does_not_fit() -> None:
    assert sparkline([float(value) for value in range(1000)], width=8) == "▁▂▃▄▅▆▇█"


def test_spans_follow_each_other_and_fill_the_total() -> None:
    parts = spans(RecoverySeconds(detect=1.0, groups=2.0, first_step=3.0, total=8.0))
    assert [part.phase for part in parts][-2:] == ["first step", "other"]
    assert parts[-1].seconds == 2.0
    ends = [part.start + part.share for part in parts]
    assert [part.start for part in parts[1:]] == pytest.approx(ends[:-1])
    assert ends[-1] == pytest.approx(1.0)


def test_spans_stay_inside_when_the_parts_exceed_the_total() -> None:
    parts = spans(RecoverySeconds(detect=2.0, state=2.0, total=3.0))
    assert max(part.start + part.share for part in parts) == pytest.approx(1.0)
    assert all(part.share == 0.0 for part in spans(RecoverySeconds()))
