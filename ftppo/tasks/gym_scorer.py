"""Scorers of reasoning-gym that evaluate an answer as an expression. Comes in: an answer, an entry; goes out: a score.

Imported in the processes that judge alone: "9**9**9**9" is an expression too, and would hold up the driver for ever.
"""

from typing import Any

import reasoning_gym.factory

_made: dict[str, Any] = {}  # a process has one dataset


def score(answer: str, entry: dict[str, Any], name: str, args: dict[str, Any]) -> float:
    """What the dataset `name` says of `answer`; 0.0 for one on which its scorer stumbles."""
    if name not in _made:
        dataset_class, config_class = reasoning_gym.factory.DATASETS[name]
        _made[name] = dataset_class(config_class(**args, seed=0, size=1))
    try:
        return float(_made[name].score_answer(answer, entry))
    except MemoryError:
        raise  # the limit of the process that judges, and its event
    except Exception:
        return 0.0
