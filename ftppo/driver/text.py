"""Numbers as a person reads them. Comes in: floats, also missing ones; goes out: short text, sparklines, waterfalls."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ftppo.driver.record import RECOVERY_PHASES, RecoveryRecord, RecoverySeconds

_BLOCKS = "▁▂▃▄▅▆▇█"
MISSING = "–"


def number(value: float | None, digits: int = 3) -> str:
    """`value` with about `digits` significant digits; whole numbers from a thousand on are grouped."""
    if value is None or not math.isfinite(value):
        return MISSING
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if magnitude < -3 or magnitude >= 9:
        return f"{value:.{digits - 1}e}"
    return f"{value:,.{max(0, digits - 1 - magnitude)}f}"


def duration(seconds: float | None) -> str:
    """`seconds` as 12 ms, 3.42 s, 2:05 or 1:02:05."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds == 0:
        return "0 s"
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def count(amount: int, noun: str) -> str:
    """`1 step`, `2 steps`, `no steps`."""
    return f"{amount or 'no'} {noun}{'' if amount == 1 else 's'}"


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The course of `values` in at most `width` characters, older ones averaged together; a missing one is a blank."""
    if not values or width < 1:
        return ""
    columns = min(width, len(values))
    edges = [index * len(values) // columns for index in range(columns + 1)]
    means = [_mean(values[start:end]) for start, end in pairwise(edges)]
    known = [value for value in means if value is not None]
    if not known:
        return ""
    low, spread = min(known), max(known) - min(known)
    return "".join(" " if value is None else _BLOCKS[_level(value - low, spread)] for value in means)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return sum(known) / len(known) if known else None


def _level(height: float, spread: float) -> int:
    if spread == 0:
        return len(_BLOCKS) // 2
    return min(len(_BLOCKS) - 1, int(height / spread * len(_BLOCKS)))


@dataclass(frozen=True)
class Span:
    """One part of a recovery on the time line of the whole; `start` and `share` are fractions of it."""

    phase: str
    seconds: float
    start: float
    share: float


def spans(seconds: RecoverySeconds) -> list[Span]:
    """The parts of a recovery, one after another. What the parts leave of `total` is the span "other" at the end."""
    parts = [(phase, max(0.0, getattr(seconds, phase))) for phase in RECOVERY_PHASES]
    known = sum(value for _, value in parts)
    if seconds.total - known > 0.01 * seconds.total:
        parts.append(("other", seconds.total - known))
    whole = max(seconds.total, known) or 1.0
    result, start = [], 0.0
    for phase, value in parts:
        result.append(Span(phase.replace("_", " "), value, start / whole, value / whole))
        start += value
    return result


def recovery_title(record: RecoveryRecord) -> str:
    """One line that says what was lost and how it came back."""
    noun = "slot" if len(record.slots) == 1 else "slots"
    where = ", ".join(map(str, record.slots)) or MISSING
    return (
        f"{noun} {where}: {record.cause} in {record.phase} → {record.plan}, state from {record.source}, "
        f"{count(record.lost_steps, 'step')} run again, generation {record.generation}"
    )
