"""Tokens by random numbers. Comes in: logits, a number for each token; goes out: tokens and their log-probabilities.

Every number hangs on (seed, iteration, purpose, sample, place in the answer) alone, so the samples are the same
whichever actor draws them, in whichever layout, and whatever else it draws at the time.
"""

import torch
from torch import Tensor

from ftppo.rng import generator
from ftppo.types import RolloutRequest


def uniforms(request: RolloutRequest, num: int, seed: int) -> Tensor:
    """One uniform number in [0, 1) for each place of each answer: [n, num] float64."""
    draws = [
        torch.rand(num, dtype=torch.float64, generator=generator(seed, request.iteration, request.purpose, int(sample)))
        for sample in request.sample
    ]
    return torch.stack(draws)


def draw(logits: Tensor, uniform: Tensor, temperature: float, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    """logits [n, vocab] float32, uniform [n] -> (token [n] int64, its log-probability [n] float32).

    By the inverse of the distribution function in float64. The log-probability is of softmax(logits / temperature)
    before top-k and top-p, the same quantity that training computes.
    """
    if temperature == 0:
        token = logits.argmax(-1)
        return token, logits.log_softmax(-1).gather(-1, token[:, None]).squeeze(-1)
    logprobs = (logits / temperature).log_softmax(-1)
    weights = _filtered(logprobs.double().exp(), top_k, top_p)
    reach = weights.cumsum(-1)
    # Rounding may make the number 1: the last place that has weight is meant then.
    whole = reach[:, -1]
    number = torch.minimum(uniform * whole, torch.nextafter(whole, torch.zeros_like(whole)))
    token = torch.searchsorted(reach, number[:, None], right=True).squeeze(-1)
    return token, logprobs.gather(-1, token[:, None]).squeeze(-1)


def _filtered(weights: Tensor, top_k: int, top_p: float) -> Tensor:
    """Zero what is not among the `top_k` likeliest (0: all), nor in the smallest set that holds `top_p` of the mass."""
    if 0 < top_k < weights.shape[-1]:
        weights = weights * (weights >= weights.topk(top_k, dim=-1).values[:, -1:])
    if top_p < 1.0:
        ordered, index = weights.sort(dim=-1, descending=True, stable=True)
        before = ordered.cumsum(-1) - ordered
        kept = ordered * (before < top_p * ordered.sum(-1, keepdim=True))
        weights = torch.zeros_like(weights).scatter(-1, index, kept)
    return weights
