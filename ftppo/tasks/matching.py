"""How an answer is judged against the expected one. Comes in: both as text; goes out: 1.0 where they match, else 0.0.

Nothing heavy is imported here: the processes that judge begin with this module.
"""

import re
from collections import deque
from decimal import Decimal, InvalidOperation
from typing import Any


def exact(answer: str, expected: str) -> float:
    """Equal but for white space around."""
    return float(answer.strip() == expected.strip())


def numeric(answer: str, expected: str) -> float:
    """Equal as numbers, thousands commas ignored."""
    found = number(answer)
    return float(found is not None and found == number(expected))


def regex(answer: str, expected: str) -> float:
    """`expected` is a regular expression that matches the whole answer, but for white space around."""
    return float(re.fullmatch(expected, answer.strip()) is not None)


KINDS = {"exact": exact, "numeric": numeric, "regex": regex}


def judge(answer: str, entry: dict[str, Any], match: str, pattern: str | None) -> float:
    """How `answer`, or what `pattern` finds in it, matches the entry's answer; 0.0 where it finds nothing."""
    said = answer if pattern is None else find(re.compile(pattern), answer)
    return 0.0 if said is None else KINDS[match](said, str(entry["answer"]))


def find(pattern: re.Pattern[str], text: str) -> str | None:
    """The last place where `pattern` matches: its first group where it has one, else all of it; None without any."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0].group(1 if pattern.groups else 0) if last else None


def number(text: str) -> Decimal | None:
    """Decimal, not float or Fraction: exact, and a huge exponent in an answer costs nothing."""
    try:
        found = Decimal(text.strip().replace(",", ""))
    except InvalidOperation:
        return None
    return found if found.is_finite() else None
