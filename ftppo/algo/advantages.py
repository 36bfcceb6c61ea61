"""How much better than expected each token was. Comes in: rewards and values; goes out: advantages and returns.

Masked positions carry the next value and the next advantage past them: what stands there, NaN included, never matters.
"""

from typing import Literal

import torch
from torch import Tensor

from ftppo import config

Kind = Literal["mean", "std", "loo"]


def advantages_of(
    rewards: Tensor, values: Tensor, mask: Tensor, algo: config.Algo, group_size: int
) -> tuple[Tensor, Tensor]:
    """Advantages as `algo.advantage` says, not yet whitened, and returns, for the critic that gae alone has.

    "gae": see `gae`. "grpo", "rloo": the rewards of a whole answer, against those of the others to its prompt, on each
    of its tokens; see `group_relative`. "reinforce_pp": the discounted sum of the rewards to come, from which whitening
    then takes the mean over the whole iteration (REINFORCE++, Hu et al. 2025).

    Args:
        rewards, values: [n, seq] float32. mask: [n, seq], 0 or 1. group_size: answers to a prompt, side by side.

    Returns:
        two tensors [n, seq] float32, 0 where mask is 0.
    """
    match algo.advantage:
        case "gae":
            return gae(rewards, values, mask, algo.gamma, algo.lam)
        case "reinforce_pp":
            advantages, _ = gae(rewards, torch.zeros_like(rewards), mask, algo.gamma, 1.0)
        case "grpo" | "rloo":
            kind: Kind = "loo" if algo.advantage == "rloo" else "std" if algo.divide_by_std else "mean"
            valid = mask.bool()
            each = group_relative(zero_outside(rewards, valid).sum(dim=1), group_size, kind)
            advantages = zero_outside(each[:, None].expand_as(mask), valid)
    return advantages, torch.zeros_like(advantages)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, equation 16), from the last token to the first.

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}; t+1 is the next position with mask 1.

    Args:
        rewards, values: [n, seq] float32. mask: [n, seq], 0 or 1.

    Returns:
        advantages and returns (advantages + values), [n, seq] float32, 0 where mask is 0.
    """
    valid = mask.bool()
    rewards, values = zero_outside(rewards, valid), zero_outside(values, valid)
    advantages = torch.zeros_like(values)
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = valid[:, t]
        next_advantage = torch.where(here, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = next_advantage
    advantages = zero_outside(advantages, valid)
    return advantages, advantages + values


def whiten(x: Tensor, mask: Tensor) -> Tensor:
    """(x - mean) * rsqrt(var + 1e-8) with mean and unbiased variance over the mask.

    The caller passes the tokens of all DP ranks at once, so that the result hangs on no layout.
    One token alone has no variance and becomes 0; no token at all stays 0.

    Args:
        x: [n, seq] float32. mask: [n, seq], 0 or 1.

    Returns:
        [n, seq] float32, 0 where mask is 0.
    """
    valid = mask.bool()
    num_tokens = valid.sum()
    centred = zero_outside(x - zero_outside(x, valid).sum() / num_tokens.clamp(min=1), valid)
    variance = centred.square().sum() / (num_tokens - 1).clamp(min=1)
    return centred * torch.rsqrt(variance + 1e-8)


def group_relative(scores: Tensor, group_size: int, kind: Kind) -> Tensor:
    """Advantages without a critic, from several answers to one prompt.

    "mean": score - mean of the group (Dr. GRPO, Liu et al. 2025); "std": that over the group's unbiased standard
    deviation + 1e-6 (GRPO, Shao et al. 2024); "loo": score - mean of the others (RLOO, Ahmadian et al. 2024).

    Args:
        scores: [n] float32, the answers to one prompt side by side. group_size: at least 2.

    Returns:
        [n] float32.
    """
    assert group_size >= 2 and scores.shape[0] % group_size == 0, (scores.shape, group_size)
    groups = scores.view(-1, group_size)
    centred = groups - groups.mean(dim=1, keepdim=True)
    if kind == "std":
        centred = centred / (groups.std(dim=1, keepdim=True) + 1e-6)
    elif kind == "loo":
        centred = centred * (group_size / (group_size - 1))
    return centred.reshape(-1)


def zero_outside(x: Tensor, valid: Tensor) -> Tensor:
    """`x` where `valid` is true, else 0; unlike a product with the mask, NaN does not get through."""
    return torch.where(valid, x, torch.zeros_like(x))
