"""Draw answers. Comes in: this actor's share of the prompts; goes out: tokens, lengths, log-probabilities.

Every random number hangs on (seed, iteration, purpose, sample, place in the answer) alone, so the samples are the same
whichever actor draws them, in whichever layout.
"""

from collections.abc import Callable

import torch
from megatron.core.models.gpt import GPTModel
from torch import Tensor

from ftppo.config import Rollout
from ftppo.rng import generator
from ftppo.types import RolloutRequest, RolloutResult
from ftppo.worker.decoder import Decoder


@torch.no_grad()
def generate(
    model: GPTModel, request: RolloutRequest, config: Rollout, eos: int, seed: int, tick: Callable[[], None]
) -> RolloutResult:
    """Answers to all rows of `request`, `config.batch` at a time. Equal on all TP and PP ranks that share the model."""
    if request.temperature is not None:
        config = config.model_copy(update={"temperature": request.temperature})
    parts = [
        _generate_batch(model, request.rows(index), config, eos, seed, tick)
        for index in torch.arange(request.tokens.shape[0]).split(config.batch)
    ]
    fields = ("tokens", "lengths", "logprobs")
    return RolloutResult(**{name: torch.cat([getattr(part, name) for part in parts]) for name in fields})


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
    token = torch.searchsorted(reach, (uniform * reach[:, -1])[:, None], right=True).squeeze(-1)
    # Rounding may point one past the end or at a weight of zero: the last place that has weight is meant then.
    last = weights.shape[-1] - 1 - weights.flip(-1).gt(0).int().argmax(-1)
    token = torch.minimum(token, last)
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


def _generate_batch(
    model: GPTModel, request: RolloutRequest, config: Rollout, eos: int, seed: int, tick: Callable[[], None]
) -> RolloutResult:
    num, width = request.tokens.shape
    decoder = Decoder(model, num, width + config.max_response)
    device = decoder.device
    uniform = uniforms(request, config.max_response, seed).to(device)
    tokens = torch.zeros(num, config.max_response, dtype=torch.int64, device=device)
    logprobs = torch.zeros(num, config.max_response, device=device)
    lengths = torch.full((num,), config.max_response, device=device)
    rows, place = (
        torch.arange(num, device=device),
        request.lengths.to(device),
    )  # sequences still running, their next place
    logits = decoder.forward(
        request.tokens.to(device), torch.arange(width, device=device).expand(num, width), request.lengths.to(device) - 1
    )
    for step in range(config.max_response):
        tick()
        token = torch.zeros(len(rows), dtype=torch.int64, device=device)
        if logits is not None:
            token, chosen = draw(logits, uniform[rows, step], config.temperature, config.top_k, config.top_p)
            logprobs[rows, step] = chosen
        token = decoder.share(token)
        tokens[rows, step] = token
        ended = token == eos
        lengths[rows[ended]] = step + 1
        going = (~ended).nonzero().squeeze(-1)
        if len(going) == 0 or step + 1 == config.max_response:
            break
        if len(going) < len(rows):
            rows, place, token = rows[going], place[going], token[going]
            decoder.keep(going)
        logits = decoder.forward(token[:, None], place[:, None])
        place = place + 1
    return RolloutResult(tokens.cpu(), lengths.cpu(), logprobs.cpu())
