"""Which answers an iteration learns from. Comes in: rounds of judged answers; goes out: whether they do, those chosen.

A group is the answers to one prompt. One whose answers are all worth the same compares nothing: with `dynamic_rounds`
it makes room for a group of another prompt, which a further round draws (dynamic sampling in DAPO, Yu et al. 2025).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ftppo.types import Answers


def differing(rewards: Tensor, group_size: int) -> Tensor:
    """Whether the answers of each group differ in worth: rewards [n] float32, groups side by side -> [groups] bool."""
    groups = rewards.view(-1, group_size)
    return (groups != groups[:, :1]).any(dim=1)


def enough(rounds: Sequence[Answers], group_size: int, num_groups: int, dynamic_rounds: int) -> bool:
    """Whether nothing more is to be drawn: `num_groups` groups differ, or `dynamic_rounds` came after the first."""
    if len(rounds) > dynamic_rounds:
        return True
    return sum(int(differing(one.rewards, group_size).sum()) for one in rounds) >= num_groups


def chosen(rounds: Sequence[Answers], group_size: int, num_groups: int) -> Answers:
    """The first `num_groups` groups that differ, in the order drawn; where there are fewer, the first others fill up.

    So an iteration has as many steps as ever, and of a single round all is chosen.
    """
    every = Answers.join(rounds)
    ranked = torch.argsort((~differing(every.rewards, group_size)).int(), stable=True)
    groups = ranked[:num_groups].sort().values
    return every.rows((groups[:, None] * group_size + torch.arange(group_size)).view(-1))
