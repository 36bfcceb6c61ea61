"""What a task is, and how a template is filled in. Comes in: an entry's fields; goes out: a prompt's text.

A task is an endless stream that hangs on (seed, index) alone: equal indices give equal prompts after any recovery.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from ftppo.errors import ConfigError
from ftppo.types import Prompt

type Asked = tuple[Prompt, str]  # a prompt and an answer to it


class Task(Protocol):
    """Prompts and what answers to them are worth."""

    def prompt(self, index: int) -> Prompt:
        """The prompt at `index` >= 0 of the endless stream."""
        ...

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        """What each answer is worth, finite, as a rule in 0..1. Raises TaskError where no score can be given."""
        ...

    def answer(self, prompt: Prompt) -> str:
        """The reference answer, for supervised warm-up. Raises TaskError where there is none."""
        ...


class Later:
    """`task` from its prompt `start` on: its own prompt 0 is that one."""

    def __init__(self, task: Task, start: int) -> None:
        self._task, self._start = task, start

    def prompt(self, index: int) -> Prompt:
        return self._task.prompt(self._start + index)

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return self._task.scores(asked)

    def answer(self, prompt: Prompt) -> str:
        return self._task.answer(prompt)


def render(template: str, fields: Mapping[str, Any]) -> str:
    """`template` after str.format over `fields`. Raises ConfigError naming the fields there are."""
    try:
        return template.format(**fields)
    except (LookupError, AttributeError, ValueError, TypeError) as error:
        there_are = ", ".join(sorted(fields))
        raise ConfigError(
            "task.template",
            template,
            f"cannot be filled in ({type(error).__name__}: {error}); the fields there are: {there_are}; "
            "double the braces that are text",
        ) from error
