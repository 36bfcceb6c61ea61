"""What a task is, and how an entry becomes a prompt. Comes in: an entry; goes out: a Prompt's text.

A task is an endless stream that hangs on (seed, index) alone: equal indices give equal prompts after any recovery.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from ftppo.errors import ConfigError
from ftppo.types import Prompt


class Task(Protocol):
    """Prompts and what answers to them are worth."""

    def prompt(self, index: int) -> Prompt:
        """The prompt at `index` >= 0 of the endless stream."""
        ...

    def score(self, prompt: Prompt, answer: str) -> float:
        """What `answer` is worth, finite, as a rule in 0..1. Raises TaskError where no score can be given."""
        ...

    def answer(self, prompt: Prompt) -> str:
        """The reference answer, for supervised warm-up. Raises TaskError where there is none."""
        ...


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
