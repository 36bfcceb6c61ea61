"""From scored answers to what an update needs: penalised rewards, advantages, returns, whitening.

Comes in: Answers of a whole iteration and their Scores; goes out: a Batch and the iteration's metrics.
"""

from torch import Tensor

from ftppo import config
from ftppo.algo.advantages import advantages_of, whiten
from ftppo.algo.kl import kl_per_token, penalised_rewards
from ftppo.algo.losses import importance
from ftppo.types import Answers, Batch, Scores


def make_batch(
    answers: Answers, scores: Scores, group_size: int, algo: config.Algo, kl_coef: float
) -> tuple[Batch, dict[str, float]]:
    """The whole iteration's Batch, all DP ranks together: whitening is global, returns are taken before it.

    Args:
        group_size: answers to a prompt. kl_coef: applied here only where `algo.kl_place` is "reward".

    Returns:
        the Batch, and means over answers (`response_length`) and over response tokens (`kl` against the reference, k1;
        `rollout_kl` of the policy that drew against the one that scored, k3; `advantage`, before whitening; with a
        critic `value`, `return` and `explained_variance`).
    """
    sequences, mask = answers.sequences, answers.sequences.response
    coef = kl_coef if algo.kl_place == "reward" else 0.0
    token_rewards = penalised_rewards(answers.rewards, scores.logprobs, scores.ref_logprobs, mask, coef, algo.kl_kind)
    advantages, returns = advantages_of(token_rewards, scores.values, mask, algo, group_size)
    final = whiten(advantages, mask) if algo.whitens else advantages
    if algo.importance_cap is not None:
        final = final * importance(scores.logprobs, answers.drawn, mask, algo.importance_cap)
    batch = Batch(
        tokens=sequences.tokens,
        response=mask,
        logprobs=scores.logprobs,
        ref_logprobs=scores.ref_logprobs,
        values=scores.values,
        advantages=final,
        returns=returns,
        num_tokens=float(mask.sum()),
        num_sequences=len(mask),
    )
    valid = mask.bool()
    metrics = {
        "response_length": float(mask.sum(dim=1).mean()),
        "kl": float(kl_per_token(scores.logprobs, scores.ref_logprobs, "k1")[valid].mean()),
        "rollout_kl": float(kl_per_token(answers.drawn, scores.logprobs, "k3")[valid].mean()),
        "advantage": float(advantages[valid].mean()),
    }
    return batch, metrics | (_of_critic(advantages[valid], returns[valid]) if algo.needs_critic else {})


def _of_critic(residual: Tensor, target: Tensor) -> dict[str, float]:
    """How well values foretell returns; what they miss is the advantages, before whitening. [tokens] each."""
    spread = float(target.var(correction=0))
    return {
        "value": float((target - residual).mean()),
        "return": float(target.mean()),
        "explained_variance": 1.0 - float(residual.var(correction=0)) / spread if spread > 0 else 0.0,
    }
