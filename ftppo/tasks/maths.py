"""Mathematical answers, judged by math-verify. Comes in: an answer, an entry; goes out: 1.0 where they are equal.

Imported in the processes that judge alone: sympy takes a second to load, and may take for ever on a strange expression.
"""

import logging
import re
from typing import Any

from math_verify import parse, verify

from ftppo.tasks.matching import find

_MARKS = ("$", "\\(", "\\[", "\\boxed")  # where LaTeX begins

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns of having no deadline; the pool has one


def judge(answer: str, entry: dict[str, Any], pattern: str | None) -> float:
    """1.0 where `answer`, or what `pattern` finds in it, ends in something equal to the entry's answer; else 0.0."""
    said = answer if pattern is None else find(re.compile(pattern), answer)
    if said is None:
        return 0.0
    expected = str(entry["answer"])
    wanted = _parsed(_marked(expected)) or _parsed(expected)
    ways = dict.fromkeys((said, _marked(said)))
    return float(any(verify(wanted, _parsed(way), timeout_seconds=None) for way in ways))


def _marked(text: str) -> str:
    """`text` as LaTeX where it does not say itself where LaTeX begins."""
    return text if any(mark in text for mark in _MARKS) else f"${text}$"


def _parsed(text: str) -> list[Any]:
    return list(parse(text, parsing_timeout=None))
