"""A user's own reward instead of the task's. Comes in: a dotted path and a task; goes out: a task with that reward.

The function is called as function(answer: str, entry: dict) -> float, in the driver.
"""

import difflib
import importlib
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from ftppo.errors import ConfigError, TaskError
from ftppo.tasks.base import Asked, Task
from ftppo.types import Prompt

KEY = "task.reward"

Reward = Callable[[str, dict[str, Any]], float]


def load_reward(path: str) -> Reward:
    """The function at `path`, "package.module.function". Raises ConfigError where there is none to call."""
    module_name, _, name = path.rpartition(".")
    if not module_name or not name:
        raise ConfigError(KEY, path, "give a dotted path, package.module.function")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a module may raise anything while it is imported
        remedy = f"module {module_name} cannot be imported ({type(error).__name__}: {error}); is it on PYTHONPATH?"
        raise ConfigError(KEY, path, remedy) from error
    function = getattr(module, name, None)
    if not callable(function):
        near = difflib.get_close_matches(name, [n for n in dir(module) if callable(getattr(module, n))], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(KEY, path, f"module {module_name} has no function {name}{hint}")
    return function  # type: ignore[no-any-return]


class RewardedTask:
    """`task`, with `reward` in place of its score."""

    def __init__(self, task: Task, reward: Reward, path: str) -> None:
        self._task, self._reward, self._path = task, reward, path

    def prompt(self, index: int) -> Prompt:
        return self._task.prompt(index)

    def answer(self, prompt: Prompt) -> str:
        return self._task.answer(prompt)

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return [self._score(prompt, answer) for prompt, answer in asked]

    def _score(self, prompt: Prompt, answer: str) -> float:
        """Raises TaskError where the function raises or returns anything but a finite number."""
        where = f"{KEY}={self._path} on the answer {answer!r} to prompt {prompt.index}"
        try:
            score: Any = self._reward(answer, prompt.entry)
        except Exception as error:
            raise TaskError(f"{where} raised {type(error).__name__}: {error}") from error
        if not isinstance(score, numbers.Real):
            raise TaskError(f"{where} returned a {type(score).__name__}, not a number: return a float")
        if not math.isfinite(score):
            raise TaskError(f"{where} returned {score}: return a finite number")
        return float(score)
