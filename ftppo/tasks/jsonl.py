"""Prompts of one's own from a file of JSON lines: {"prompt": ..., "answer": ...} and any fields for the template.

Comes in: a path and a seed; goes out: an endless stream, every epoch in an order of its own.
"""

import functools
import json
import random
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal

from ftppo.errors import ConfigError, TaskError
from ftppo.rng import seed_for
from ftppo.tasks.base import render
from ftppo.types import Prompt

CACHED_EPOCHS = 2


class JsonlTask:
    """Lines of a file; the answer is worth 1 where it matches, else 0.

    match "exact": equal but for white space around; "numeric": equal as numbers, thousands commas ignored.
    The template's fields are those of the line, and `question`, another name for its prompt.
    """

    def __init__(self, path: str | None, match: Literal["exact", "numeric"], template: str, seed: int) -> None:
        """Raises ConfigError where there is no such file, TaskError naming file and line where one is malformed."""
        if path is None:
            raise ConfigError("task.path", path, "task.kind=jsonl needs the path of a file of JSON lines")
        self._match, self._template, self._seed = match, template, seed
        self._entries = _read(Path(path), match)
        self._order = functools.lru_cache(maxsize=CACHED_EPOCHS)(self._shuffle)
        self.prompt(0)  # a template that cannot be filled in shows at start

    def prompt(self, index: int) -> Prompt:
        epoch, place = divmod(index, len(self._entries))
        entry = self._entries[self._order(epoch)[place]]
        text = render(self._template, {"question": entry["prompt"], **entry})
        return Prompt(index=index, text=text, entry=entry)

    def score(self, prompt: Prompt, answer: str) -> float:
        expected = prompt.entry["answer"]
        if self._match == "exact":
            return float(answer.strip() == expected.strip())
        number = _number(answer)
        return float(number is not None and number == _number(expected))

    def answer(self, prompt: Prompt) -> str:
        return str(prompt.entry["answer"])

    def _shuffle(self, epoch: int) -> list[int]:
        order = list(range(len(self._entries)))
        random.Random(seed_for(self._seed, "jsonl", epoch)).shuffle(order)
        return order


def _read(path: Path, match: str) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(
            "task.path", str(path), f"cannot be read ({error.strerror}): give a file of JSON lines"
        ) from error
    entries = [_parse(line, f"{path}, line {i}", match) for i, line in enumerate(lines, 1) if line.strip()]
    if not entries:
        raise TaskError(f'{path} holds no prompts: write a line {{"prompt": ..., "answer": ...}} for each')
    return entries


def _parse(line: bytes, where: str, match: str) -> dict[str, Any]:
    try:
        entry = json.loads(line.decode())
    except ValueError as error:
        raise TaskError(f"{where}: not JSON in UTF-8: {error}") from error
    if not isinstance(entry, dict):
        raise TaskError(f"{where}: a JSON object is wanted, not {type(entry).__name__}")
    prompt, answer = entry.get("prompt"), entry.get("answer")
    if not isinstance(prompt, str):
        raise TaskError(f'{where}: "prompt" is to be a string, not {prompt!r}')
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        raise TaskError(f'{where}: "answer" is to be a string or a number, not {answer!r}')
    if match == "numeric" and _number(str(answer)) is None:
        raise TaskError(f'{where}: "answer" is to be a number, as task.match=numeric, not {answer!r}')
    return {**entry, "answer": str(answer)}


def _number(text: str) -> Decimal | None:
    """Decimal, not float or Fraction: exact, and a huge exponent in an answer costs nothing."""
    try:
        number = Decimal(text.strip().replace(",", ""))
    except InvalidOperation:
        return None
    return number if number.is_finite() else None
