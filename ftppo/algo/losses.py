"""PPO's clipped losses (Schulman et al. 2017). Comes in: what the models say now and said then; goes out: losses.

Losses are per token and 0 outside the mask. The caller multiplies them by `token_weights`, which know the counts of the
whole mini-batch over all DP ranks, and sums: so neither the micro-batch split nor the layout changes the gradient.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ftppo.algo.advantages import zero_outside

MAX_LOG_RATIO = 20.0  # exp of more overflows in training long before it means anything


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped policy loss of some rows, and sums over their mask, which carry no gradient."""

    per_token: Tensor  # [n, seq] float32, differentiable, 0 where mask is 0
    kl_sum: Tensor  # scalar: rho - 1 - log rho, the k3 estimate of KL(old policy, new policy)
    clipped_sum: Tensor  # scalar: tokens where either clip took over


@dataclass(frozen=True)
class ValueLoss:
    """The clipped value loss of some rows, and a sum over their mask, which carries no gradient."""

    per_token: Tensor  # [n, seq] float32, differentiable, 0 where mask is 0
    clipped_sum: Tensor  # scalar: tokens where the clipped error is the larger


def token_weights(
    mask: Tensor, num_tokens: float, num_sequences: int, aggregate: Literal["token_mean", "seq_mean", "token_sum"]
) -> Tensor:
    """What the loss of each token is multiplied by before all are summed.

    "token_mean": every token of the mini-batch counts alike (DAPO, Yu et al. 2025). "seq_mean": every answer does, and
    within it every token (GRPO, Shao et al. 2024). "token_sum": an answer counts by its length, the sum over its tokens
    (Dr. GRPO, Liu et al. 2025), and the number of answers divides.

    Args:
        mask: [n, seq], 0 or 1, whole answers. num_tokens, num_sequences: of the whole mini-batch, on all ranks.

    Returns:
        [n, seq] float32, 0 where mask is 0.
    """
    match aggregate:
        case "token_mean":
            return mask / num_tokens
        case "seq_mean":
            return mask / (mask.sum(dim=1, keepdim=True).clamp(min=1) * num_sequences)
        case "token_sum":
            return mask / num_sequences


def importance(logprobs: Tensor, drawn: Tensor, mask: Tensor, cap: float) -> Tensor:
    """min(exp(logprobs - drawn), cap): how much likelier training finds a token than the rollout that drew it did.

    The two run other code, so their policies differ a little, and advantages times this make up for it (Yao et al.
    2025, truncated importance sampling). Being at least 0, it may be multiplied in before the loss is clipped.

    Args:
        logprobs, drawn: [n, seq] float32. mask: [n, seq], 0 or 1.

    Returns:
        [n, seq] float32; what is outside the mask does not matter.
    """
    log_ratio = zero_outside(logprobs - drawn, mask.bool()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_ratio.exp().clamp(max=cap)


def policy_loss(
    logprobs: Tensor,
    old_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)); for A < 0 no more than -A dual_clip (Ye et al. 2020).

    rho = exp(logprobs - old_logprobs), the difference clamped to +-20.

    Args:
        logprobs, old_logprobs, advantages: [n, seq] float32. mask: [n, seq], 0 or 1. dual_clip: above 1, or None.
    """
    valid = mask.bool()
    advantages = zero_outside(advantages, valid)
    log_ratio = (zero_outside(logprobs, valid) - zero_outside(old_logprobs, valid)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    if dual_clip is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual_clip), loss)
    with torch.no_grad():
        kl_sum, clipped_sum = (ratio - 1 - log_ratio).sum(), (loss != plain).float().sum()
    return PolicyLoss(loss, kl_sum, clipped_sum)


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, mask: Tensor, clip: float | None) -> ValueLoss:
    """1/2 max((V - R)^2, (clip(V, V_old +- clip) - R)^2); without `clip` the first alone.

    Args:
        values, old_values, returns: [n, seq] float32. mask: [n, seq], 0 or 1.
    """
    valid = mask.bool()
    values, old_values, returns = (zero_outside(x, valid) for x in (values, old_values, returns))
    plain = (values - returns).square()
    if clip is None:
        return ValueLoss(plain / 2, torch.zeros((), device=plain.device))
    clipped = (torch.clamp(values, old_values - clip, old_values + clip) - returns).square()
    return ValueLoss(torch.maximum(plain, clipped) / 2, (clipped > plain).detach().float().sum())
