"""From scored answers to what an update needs: penalised rewards, advantages, returns, whitening.

Comes in: Sequences, Scores and rewards of a whole iteration; goes out: a Batch and the iteration's metrics.
"""

from torch import Tensor

from ftppo import config
from ftppo.algo.advantages import gae, whiten, zero_outside
from ftppo.algo.kl import kl_per_token, penalised_rewards
from ftppo.types import Batch, Scores, Sequences


def make_batch(
    sequences: Sequences, scores: Scores, rewards: Tensor, algo: config.Algo, kl_coef: float
) -> tuple[Batch, dict[str, float]]:
    """The whole iteration's Batch, all DP ranks together: whitening is global, returns are taken before it.

    Args:
        rewards: [n] float32, what each answer is worth. kl_coef: applied here only where `algo.kl_place` is "reward".

    Returns:
        the Batch, and means over answers (`reward`, `reward_std`, `response_length`) and over response tokens (`kl`
        against the reference, k1; `value`, `return`, `advantage`, before whitening; `explained_variance`).
    """
    mask = sequences.response
    coef = kl_coef if algo.kl_place == "reward" else 0.0
    token_rewards = penalised_rewards(rewards, scores.logprobs, scores.ref_logprobs, mask, coef, algo.kl_kind)
    advantages, returns = gae(token_rewards, scores.values, mask, algo.gamma, algo.lam)
    batch = Batch(
        tokens=sequences.tokens,
        response=mask,
        logprobs=scores.logprobs,
        ref_logprobs=scores.ref_logprobs,
        values=scores.values,
        advantages=whiten(advantages, mask) if algo.whiten else advantages,
        returns=returns,
        num_tokens=float(mask.sum()),
    )
    return batch, _metrics(scores, rewards, mask, advantages, returns)


def _metrics(scores: Scores, rewards: Tensor, mask: Tensor, advantages: Tensor, returns: Tensor) -> dict[str, float]:
    valid = mask.bool()
    residual, target = advantages[valid], returns[valid]  # returns - values = advantages
    spread = float(target.var(correction=0))
    kl = zero_outside(kl_per_token(scores.logprobs, scores.ref_logprobs, "k1"), valid)
    return {
        "reward": float(rewards.mean()),
        "reward_std": float(rewards.std(correction=0)),
        "response_length": float(mask.sum(dim=1).mean()),
        "kl": float(kl.sum() / mask.sum()),
        "value": float(zero_outside(scores.values, valid).sum() / mask.sum()),
        "return": float(target.mean()),
        "advantage": float(residual.mean()),
        "explained_variance": 1.0 - float(residual.var(correction=0)) / spread if spread > 0 else 0.0,
    }
