"""What answers are worth. Comes in: answers as texts and as sequences; goes out: a number each.

The task judges texts, here; a reward model, where there is one, judges sequences, on the mesh.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from ftppo.config import Reward
from ftppo.driver.mesh import CallPhase, Mesh
from ftppo.tasks.base import Asked, Task
from ftppo.types import Rewards, Sequences


@dataclass(frozen=True)
class Drawn:
    """Answers that are not judged yet, as texts and as sequences."""

    asked: list[Asked]
    sequences: Sequences
    logprobs: Tensor  # [n, seq] float32, when they were drawn


def worth(
    asked: Sequence[Asked], sequences: Sequences, task: Task, knobs: Reward, mesh: Mesh, phase: CallPhase
) -> list[float]:
    """reward.task_coef x what the task says + reward.coef x what the reward model says, of each of `asked`.

    `sequences` are the same answers in the same order; there may be more of them. Raises GenerationBroken, TaskError.
    """
    values = [0.0] * len(asked)
    if knobs.path is not None:  # first: if the mesh breaks, the task is not asked twice
        found: Rewards = mesh.call("reward", rows=sequences, via="mesh", phase=phase)
        values = [knobs.coef * value for value in found.values[: len(asked)].tolist()]
    if not knobs.task_coef:
        return values
    return [knobs.task_coef * score + value for score, value in zip(task.scores(asked), values, strict=True)]
