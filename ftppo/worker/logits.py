"""Log-probabilities and entropies from logits that are cut along the vocabulary (TP), without gathering them."""

import torch
from megatron.core import parallel_state
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """logits [..., vocab / tp], targets [...] int64 -> (log-probability [...], entropy [...]), float32, differentiable.

    Of the distribution softmax(logits / temperature); temperature 0 counts as 1, as greedy drawing has no density.
    """
    scaled = logits.float() / temperature if temperature > 0 else logits.float()
    group = parallel_state.get_tensor_model_parallel_group()
    peak = scaled.detach().amax(-1)
    shifted = scaled - peak.unsqueeze(-1)
    weights = shifted.exp()
    start = group.rank() * logits.shape[-1]
    local = (targets - start).clamp(0, logits.shape[-1] - 1)
    here = ((targets >= start) & (targets < start + logits.shape[-1])).float()
    chosen = scaled.gather(-1, local.unsqueeze(-1)).squeeze(-1) * here
    own = torch.stack((peak, weights.sum(-1), (weights * shifted).sum(-1), chosen))
    peaks, totals, weighteds, chosens = torch.stack(_gather(own, group)).unbind(1)
    # Each rank has shifted by its own peak: bring all to the highest one.
    highest = peaks.amax(0)
    lower = peaks - highest
    total = (lower.exp() * totals).sum(0)
    weighted = (lower.exp() * (weighteds + lower * totals)).sum(0)
    log_total = total.log()
    return chosens.sum(0) - highest - log_total, log_total - weighted / total


def _gather(own: Tensor, group: torch.distributed.ProcessGroup) -> list[Tensor]:
    """Every rank's part; the gradient goes to this rank's own: all compute the same from them."""
    if group.size() == 1:
        return [own]
    parts = [torch.empty_like(own) for _ in range(group.size())]
    torch.distributed.all_gather(parts, own.detach(), group=group)
    parts[group.rank()] = own
    return parts
