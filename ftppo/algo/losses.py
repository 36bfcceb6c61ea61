"""PPO's clipped losses (Schulman et al. 2017). Comes in: what the models say now and said then; goes out: masked sums.

Losses are per token and 0 outside the mask. The caller sums them and divides by the token count of the whole mini-batch
over all DP ranks, so that neither the micro-batch split nor the layout changes the gradient.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ftppo.algo.advantages import zero_outside

MAX_LOG_RATIO = 20.0  # exp of more overflows in training long before it means anything


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped policy loss of some rows, and sums over their mask, which carry no gradient."""

    per_token: Tensor  # [n, seq] float32, 0 where mask is 0
    kl_sum: Tensor  # scalar: rho - 1 - log rho, the k3 estimate of KL(old policy, new policy)
    clipped_sum: Tensor  # scalar: tokens where either clip took over

    @property
    def loss_sum(self) -> Tensor:
        """Scalar, differentiable: to be divided by the token count of the whole mini-batch."""
        return self.per_token.sum()


@dataclass(frozen=True)
class ValueLoss:
    """The clipped value loss of some rows, and a sum over their mask, which carries no gradient."""

    per_token: Tensor  # [n, seq] float32, 0 where mask is 0
    clipped_sum: Tensor  # scalar: tokens where the clipped error is the larger

    @property
    def loss_sum(self) -> Tensor:
        """Scalar, differentiable: to be divided by the token count of the whole mini-batch."""
        return self.per_token.sum()


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
