"""Tables for a terminal. Comes in: rows of cells; goes out: aligned lines; and numbers as a person reads them."""

from collections.abc import Sequence
from datetime import UTC, datetime

type Cell = str | int  # numbers stand to the right


def table(header: Sequence[str], rows: Sequence[Sequence[Cell]]) -> str:
    """`header` and `rows`, columns two spaces apart, without a space at the end of a line."""
    columns = list(zip(header, *rows, strict=True))
    widths = [max(len(str(cell)) for cell in column) for column in columns]
    right = [any(isinstance(cell, int) for cell in column) for column in columns]
    lines = [
        "  ".join(
            str(cell).rjust(width) if to_right else str(cell).ljust(width)
            for cell, width, to_right in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in (header, *rows)
    ]
    return "\n".join(lines)


def size(num_bytes: float) -> str:
    """`num_bytes` in bytes, KiB, MiB, GiB or TiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if num_bytes < 1024:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} TiB"


def age(seconds: float) -> str:
    """`seconds` as 12 s, 3 min, 5 h or 2 days."""
    for unit, unit_s in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s:.0f} {unit}"
    return f"{max(seconds, 0.0):.0f} s"


def moment(seconds: float) -> str:
    """`seconds` since the epoch as a date and time of UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
