"""Work counted instead of timed. Comes in: something to run; goes out: lines run, slots and actor ids compared."""

import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

compared = Counter[str]()  # a search through a list runs no line of Python, but compares


class Name(str):
    """An actor id that counts how often it is compared."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        compared["names"] += 1
        return str.__eq__(self, other)


class Slot(int):
    """A slot number that counts how often it is compared."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        compared["slots"] += 1
        return int.__eq__(self, other)


def work(action: Callable[[], object]) -> int:
    """Lines of Python that `action` runs, and comparisons that it makes."""
    lines, before, already = 0, sys.gettrace(), compared.total()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return lines + compared.total() - already
