"""How far the policy is from the reference. Comes in: log-probabilities; goes out: KL, rewards, a coefficient.

The estimators are Schulman's (joschu.net/blog/kl-approx.html, 2020), with log-ratio = logprob - reference logprob.
"""

from typing import Literal

import torch
from torch import Tensor

from ftppo.algo.advantages import zero_outside

Kind = Literal["k1", "k2", "k3"]


def kl_per_token(logprobs: Tensor, ref_logprobs: Tensor, kind: Kind) -> Tensor:
    """Estimate of KL(policy, reference) at each token drawn from the policy, differentiable in `logprobs`.

    With d = logprobs - ref_logprobs: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d; for k3 d is clamped to +-20 and the
    result to +-10, as a single token far off would outweigh all others.

    Args:
        logprobs, ref_logprobs: [n, seq] float32.

    Returns:
        [n, seq] float32; what is no response is for the caller to mask.
    """
    log_ratio = logprobs - ref_logprobs
    match kind:
        case "k1":
            return log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            log_ratio = log_ratio.clamp(-20.0, 20.0)
            return (torch.expm1(-log_ratio) + log_ratio).clamp(-10.0, 10.0)


def penalised_rewards(
    scores: Tensor, logprobs: Tensor, ref_logprobs: Tensor, mask: Tensor, coef: float, kind: Kind
) -> Tensor:
    """-coef * KL at each response token, and the answer's score on its last one.

    Args:
        scores: [n] float32. logprobs, ref_logprobs: [n, seq] float32. mask: [n, seq], at least one 1 a row.

    Returns:
        [n, seq] float32, 0 where mask is 0.
    """
    valid = mask.bool()
    assert bool(valid.any(dim=1).all()), "a response without tokens has nowhere to put its score"
    last = valid.shape[1] - 1 - valid.flip(1).int().argmax(dim=1)
    rewards = zero_outside(-coef * kl_per_token(logprobs, ref_logprobs, kind), valid)
    rewards[torch.arange(len(scores)), last] += scores
    return rewards


def next_coef(coef: float, kl: float, target: float, horizon: float, num_samples: int) -> float:
    """The KL coefficient after `num_samples` answers with mean `kl`, moved towards `target` (Ziegler et al. 2019, 2.2).

    coef * (1 + clip(kl / target - 1, +-0.2) * num_samples / horizon).
    """
    error = min(max(kl / target - 1, -0.2), 0.2)
    return coef * (1 + error * num_samples / horizon)
