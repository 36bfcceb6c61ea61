"""Two sides measured in turn. Comes in: seconds of one and of the other, round by round; goes out: a row of a table.

A machine that is busy for a while slows both sides of a round, so the ratio is taken round by round.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Pairs:
    """One case. `seconds` are (ours, other) of each round; both sides handle `num_tokens` in each."""

    case: str
    num_tokens: int
    seconds: list[tuple[float, float]] = field(default_factory=list)

    def add(self, ours_s: float, other_s: float) -> None:
        """One more round."""
        self.seconds.append((ours_s, other_s))

    @property
    def ratios(self) -> list[float]:
        """Throughput of ours over that of the other side, round by round: above 1 ours is the faster one."""
        return [other / ours for ours, other in self.seconds]

    def row(self) -> list[str]:
        """Case, tokens/s of ours and of the other side (medians), ratio (median, lowest, highest)."""
        ours, other = (self.num_tokens / statistics.median(side) for side in zip(*self.seconds, strict=True))
        ratios = self.ratios
        middle = statistics.median(ratios)
        return [self.case, f"{ours:,.0f}", f"{other:,.0f}", f"{middle:.2f}", f"{min(ratios):.2f} - {max(ratios):.2f}"]


def table(title: str, other: str, pairs: Sequence[Pairs]) -> str:
    """All cases of a benchmark, as text. `other` names the side that ours is compared with."""
    head = ["case", "ftppo tok/s", f"{other} tok/s", "ratio", "range"]
    return aligned(title, [head, *(one.row() for one in pairs)])


def aligned(title: str, rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells below a title, the first of which is the head, in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    return "\n".join([title, *(f"  {line.rstrip()}" for line in lines)])
