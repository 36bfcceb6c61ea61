"""JSON on disk that outlives a kill. Comes in: plain values; goes out: whole lines, whole files, and what is read back.

Numbers that are not finite become null: JSON has no word for them.
"""

import json
import math
import os
from pathlib import Path
from typing import Any


def to_json(value: Any, indent: int | None = None) -> str:
    """`value` as valid JSON."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False, ensure_ascii=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


class JsonLines:
    """A file that grows by one line a record, on disk when `append` returns; opened again it goes on."""

    def __init__(self, path: Path) -> None:
        # Unbuffered append: one write call a line, so that lines of several threads never mix.
        self._file = path.open("ab", buffering=0)
        if _is_torn(path):
            self._file.write(b"\n")

    def append(self, row: dict[str, Any]) -> None:
        """Write one line."""
        self._file.write(to_json(row).encode() + b"\n")

    def close(self) -> None:
        """Let go of the file; again does nothing."""
        self._file.close()


def _is_torn(path: Path) -> bool:
    """Whether the writer was killed inside the last line."""
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return False
        file.seek(-1, os.SEEK_END)
        return file.read() != b"\n"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file, in order; none where there is no file. A torn line is left out."""
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().split(b"\n"):  # only there: text may hold other characters that end a line
        try:
            row = json.loads(line)
        except ValueError:
            continue  # a killed writer leaves at most one such line a start; the line after it is whole again
        if isinstance(row, dict):
            rows.append(row)
    return rows


def write_atomic(path: Path, text: str) -> None:
    """Replace `path` as a whole: a reader sees the old text or the new one."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
