"""From rows to what a task asks. Comes in: rows and the task's keys; goes out: entries, each with its prompt's text.

Where a prompt is too long, or empty, there is None in the place of its entry.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ftppo.config_task import Dataset, Task
from ftppo.errors import TaskError
from ftppo.tasks.base import render
from ftppo.tasks.chat import ChatTemplate
from ftppo.tasks.matching import find, number
from ftppo.tasks.rows import Row
from ftppo.tasks.tokenizer import Tokenizer


@dataclass(frozen=True)
class Entry:
    """A row that can be asked. `fields` are the row's own, with its "answer" as text where there is one."""

    text: str
    fields: dict[str, Any]


@dataclass(frozen=True)
class EntryMaker:
    """Makes entries as the task says, for prompts of up to `max_prompt` tokens."""

    task: Task
    tokenizer: Tokenizer
    max_prompt: int
    chat: ChatTemplate | None  # given where task.chat is

    def make(self, rows: Iterable[Row], part: Dataset) -> list[Entry | None]:
        """The entries of one dataset, row by row; None where the prompt's length is not possible. Raises TaskError."""
        made = [self._entry(row, part) for row in rows]
        if not made:
            raise TaskError(f'{part.path} holds no prompts: write a row {{"prompt": ..., "answer": ...}} for each')
        entries = [entry if self._fits(entry.text) else None for entry in made]
        if not any(entries):
            remedy = (
                f"none of its {len(entries)} prompts has 1 to rollout.max_prompt={self.max_prompt} tokens: raise it"
            )
            raise TaskError(f"{part.path}: {remedy}")
        return entries

    def _fits(self, text: str) -> bool:
        return 0 < len(self.tokenizer.encode_prompt(text)) <= self.max_prompt

    def _entry(self, row: Row, part: Dataset) -> Entry:
        assert part.prompt_column is not None, "Task.parts has filled it in"
        prompt = _column(row, part.prompt_column)
        fields = row.fields | ({} if part.answer_column is None else {"answer": self._answer(row, part.answer_column)})
        if isinstance(prompt, str):
            text = render(self.task.template, {"question": prompt, **fields})
            return Entry(text if self.chat is None else self._in_chat(_one(text), row), fields)
        if self.chat is None:
            raise TaskError(f'{row.where}: "{part.prompt_column}" is to be a string, not {prompt!r:.60}')
        return Entry(self._in_chat(_messages(prompt, row, part.prompt_column), row), fields)

    def _in_chat(self, messages: Sequence[dict[str, Any]], row: Row) -> str:
        assert self.chat is not None
        if self.task.system is not None and messages[0].get("role") != "system":
            messages = [{"role": "system", "content": self.task.system}, *messages]
        return self.chat.render(messages, row.where)

    def _answer(self, row: Row, column: str) -> str:
        found = _column(row, column)
        if isinstance(found, bool) or not isinstance(found, str | int | float):
            raise TaskError(f'{row.where}: "{column}" is to be a string or a number, not {found!r:.60}')
        answer = str(found)
        if self.task.answer_pattern is not None:
            picked = find(re.compile(self.task.answer_pattern), answer)
            if picked is None:
                raise TaskError(
                    f'{row.where}: task.answer_pattern={self.task.answer_pattern!r} finds nothing in "{column}", '
                    f"which is {answer!r:.200}"
                )
            answer = picked
        if self.task.reward is None and (wanted := _not_as_wanted(answer, self.task.match)):
            wanted = f"{wanted}, as task.match={self.task.match}, not {answer!r:.60}"
            raise TaskError(f'{row.where}: "{column}" is to be {wanted}')
        return answer


def _not_as_wanted(answer: str, match: str) -> str | None:
    """What an expected answer must be to be matched in this way, where it is not."""
    if match == "numeric" and number(answer) is None:
        return "a number"
    if match == "regex":
        try:
            re.compile(answer)
        except re.error:
            return "a regular expression"
    return None


def _column(row: Row, column: str) -> Any:
    if column not in row.fields:
        there_are = ", ".join(sorted(row.fields)) or "none"
        raise TaskError(
            f'{row.where}: there is no "{column}", only {there_are}: see task.prompt_column and task.answer_column'
        )
    return row.fields[column]


def _one(text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text}]


def _messages(found: Any, row: Row, column: str) -> list[dict[str, Any]]:
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) and "role" in one for one in found):
        raise TaskError(
            f'{row.where}: "{column}" is to be a string or messages with role and content, not {found!r:.60}'
        )
    return found
