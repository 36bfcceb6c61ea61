"""What answers are worth. Comes in: prompts with answers, and who judges them; goes out: scores, in their order.

Exact and numeric matches, and most datasets of reasoning-gym, are judged on the spot. All else runs code that is a
user's own, or that may take for ever on a strange answer, and is judged in the processes of a JudgePool.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from ftppo.config_task import Judge, Task
from ftppo.errors import TaskError
from ftppo.tasks import base, matching
from ftppo.tasks.base import Asked
from ftppo.tasks.pool import Failure, JudgePool
from ftppo.types import Prompt

EVALUATING = (  # datasets of reasoning-gym whose scorers evaluate the answer as an expression
    "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication", "propositional_logic", "puzzle24",
    "simple_integration",
)  # fmt: skip

_log = logging.getLogger(__name__)


class Scorer(Protocol):
    """Says what answers are worth; `tell` hears of those that count 0 for want of a score."""

    tell: Callable[[str], None]

    def __call__(self, asked: Sequence[Asked]) -> list[float]: ...

    def close(self) -> None:
        """Let go of processes; what is judged after that starts new ones."""
        ...


def scorer_of(task: Task, knobs: Judge) -> Scorer | None:
    """Who judges in this task; None: the task itself. Raises ConfigError where task.reward cannot be called."""
    if task.reward is not None:
        pool = JudgePool("task.reward", task.reward, {}, knobs)
        return PoolScorer(pool, f"task.reward={task.reward}", knobs)
    if task.kind == "reasoning_gym":
        if task.name not in EVALUATING:
            return None
        gym = {"name": task.name, "args": {key: value for key, value in task.args.items() if key != "size"}}
        return PoolScorer(
            JudgePool("task.name", "ftppo.tasks.gym_scorer.score", gym, knobs), f"task {task.name}", knobs
        )
    if task.match in ("exact", "numeric") and task.response_pattern is None:
        return _Match(task.match)
    name = "ftppo.tasks.maths.judge" if task.match == "math" else "ftppo.tasks.matching.judge"
    options = {"pattern": task.response_pattern} | ({} if task.match == "math" else {"match": task.match})
    return PoolScorer(JudgePool("task.match", name, options, knobs), f"task.match={task.match}", knobs)


class RewardedTask:
    """`task`, judged by another."""

    def __init__(self, task: base.Task, scorer: Scorer) -> None:
        self._task, self.scorer = task, scorer

    def prompt(self, index: int) -> Prompt:
        return self._task.prompt(index)

    def answer(self, prompt: Prompt) -> str:
        return self._task.answer(prompt)

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        return self.scorer(asked)


class PoolScorer:
    """Judges in the pool's processes. `name` is what the function is known by."""

    def __init__(self, pool: JudgePool, name: str, knobs: Judge) -> None:
        self._pool, self._name, self._knobs = pool, name, knobs
        self._proved = False  # whether any answer has had a score
        self.tell: Callable[[str], None] = _log.warning

    def __call__(self, asked: Sequence[Asked]) -> list[float]:
        """Raises TaskError for the first answer without a score where judge.on_error=fail, or if none ever had one."""
        verdicts = self._pool.judge([(answer, prompt.entry) for prompt, answer in asked])
        failed = [index for index, one in enumerate(verdicts) if isinstance(one, Failure)]
        self._proved = self._proved or len(failed) < len(verdicts)
        if failed:
            (prompt, answer), first = asked[failed[0]], verdicts[failed[0]]
            assert isinstance(first, Failure)
            what = f"{self._name} on the answer {answer!r} to prompt {prompt.index} {first.what}"
            if self._knobs.on_error == "fail" or not self._proved:
                raise TaskError(what)
            self.tell(f"{len(failed)} of {len(asked)} answers have no score and count 0; the first: {what}")
        return [0.0 if isinstance(one, Failure) else one for one in verdicts]

    def close(self) -> None:
        self._pool.close()


class _Match:
    """Judges on the spot."""

    def __init__(self, match: str) -> None:
        self._match = matching.KINDS[match]
        self.tell: Callable[[str], None] = _log.warning

    def __call__(self, asked: Sequence[Asked]) -> list[float]:
        return [self._match(answer, str(prompt.entry["answer"])) for prompt, answer in asked]

    def close(self) -> None:
        pass
