"""Forward passes and one optimizer step. Comes in: a DP chunk of a mini-batch; goes out: scores, or new weights.

A sequence runs shifted by one: position t sees token t and answers for token t + 1, so masks and per-token quantities
are shifted to the left before they are cut over the context-parallel ranks. Each token's loss arrives divided by counts
of the whole mini-batch, hence gradients are plain sums and neither the layout nor the micro-batch split changes them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from ftppo.algo.kl import kl_per_token
from ftppo.algo.losses import policy_loss, token_weights, value_loss
from ftppo.config import Config
from ftppo.plan.packing import Pack, even
from ftppo.types import Batch, Rewards, Scores, Sequences, lengths_of
from ftppo.worker.attention import unzigzag, zigzag
from ftppo.worker.logits import token_logprobs
from ftppo.worker.model import Learner

Shifted = dict[str, Tensor]
Tick = Callable[[str], None]  # told which part of the work begins
LossFunc = Callable[[Tensor], tuple[Tensor, Tensor, dict[str, Tensor]]]


def shift(**fields: Tensor) -> Shifted:
    """[n, seq] each -> the same, one to the left along the sequence, zero at the end: aligned with who predicts it."""
    return {name: torch.roll(field, -1, dims=1).index_fill(1, _last(field), 0) for name, field in fields.items()}


def scores_of(
    models: Mapping[str, torch.nn.Module], sequences: Sequences, packs: Sequence[Pack], config: Config, tick: Tick
) -> Scores | None:
    """What policy, reference and critic say about this DP chunk, as far as they are among `models`.

    Returned on the last pipeline stage; None on others.
    """
    found: dict[str, Tensor | None] = {}
    for name, kind in (("policy", "logprobs"), ("reference", "logprobs"), ("critic", "values")):
        if name in models:
            tick("forward")
            found[name] = forward_scores(models[name], sequences, kind, packs, config)
    logprobs, reference, values = (found.get(name) for name in ("policy", "reference", "critic"))
    if logprobs is None:
        return None
    return Scores(
        logprobs=logprobs,
        ref_logprobs=logprobs if reference is None else reference,
        values=torch.zeros_like(logprobs) if values is None else values,
    )


def forward_scores(
    model: torch.nn.Module, sequences: Sequences, kind: str, packs: Sequence[Pack], config: Config
) -> Tensor | None:
    """Log-probabilities (`kind` "logprobs") or values ("values") [n, seq] float32 of this DP chunk.

    0 where not a response. Returned on the last pipeline stage; None on others.
    """
    rows = shift(targets=sequences.tokens, mask=sequences.response)

    def outputs(out: Tensor, part: Shifted) -> Tensor:
        if kind == "values":
            return out.squeeze(-1)
        return token_logprobs(out, part["targets"], config.rollout.temperature)[0]

    found = _forward(model, sequences, rows, packs, outputs)
    return None if found is None else torch.roll(found, 1, dims=1) * sequences.response


def rewards_of(model: torch.nn.Module, sequences: Sequences, packs: Sequence[Pack], tick: Tick) -> Rewards | None:
    """What the classifier `model` says at the last token of each answer of this DP chunk.

    Returned on the last pipeline stage; None on others.
    """
    found = _forward(model, sequences, {}, packs, lambda out, _: out.squeeze(-1), tick)
    if found is None:
        return None
    last = torch.tensor(lengths_of(sequences.response))[:, None] - 1
    return Rewards(found.gather(1, last).squeeze(1))


def gradients(
    learner: Learner, batch: Batch, kl_coef: float, packs: Sequence[Pack], config: Config, tick: Tick
) -> Tensor:
    """Add up the gradients of a DP chunk. Returns its share of the means: 4 of the policy, 2 of the critic."""
    if learner.role == "critic":
        return value_gradients(learner, batch, packs, config, tick)
    return policy_gradients(learner, batch, kl_coef, packs, config, tick)


def policy_gradients(
    learner: Learner, batch: Batch, kl_coef: float, packs: Sequence[Pack], config: Config, tick: Tick
) -> Tensor:
    """Add up a DP chunk's policy gradients. Returns its share of the means [4]: loss, entropy, KL, clipped."""
    algo = config.algo
    rows = shift(
        targets=batch.tokens,
        mask=batch.response,
        weight=_weights(batch, config),
        logprobs=batch.logprobs,
        ref=batch.ref_logprobs,
        adv=batch.advantages,
    )

    def loss_of(part: Shifted) -> LossFunc:
        def loss(logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            mask, weight = part["mask"], part["weight"]
            logprobs, entropy = token_logprobs(logits, part["targets"], config.rollout.temperature)
            result = policy_loss(
                logprobs, part["logprobs"], part["adv"], mask, algo.clip_low, algo.clip_high, algo.dual_clip
            )
            clipped_loss = (result.per_token * weight).sum()
            total = clipped_loss - algo.entropy_coef * (entropy * weight).sum()
            if algo.kl_place == "loss" and kl_coef > 0:
                total = total + kl_coef * (kl_per_token(logprobs, part["ref"], algo.kl_kind) * weight).sum()
            told = torch.stack(((entropy * mask).sum(), result.kl_sum, result.clipped_sum)) / batch.num_tokens
            return total, _one(logits), {"sums": torch.cat((clipped_loss[None], told)).detach()}

        return loss

    store = _run(learner.model, batch.tokens, rows, packs, loss_of, forward_only=False, tick=tick)
    return _sums(learner.model, store, 4)


def supervised_gradients(learner: Learner, batch: Batch, packs: Sequence[Pack], tick: Tick) -> Tensor:
    """Add up the gradients of the mean negative log-likelihood of the responses. Returns as `policy_gradients`."""
    rows = shift(targets=batch.tokens, mask=batch.response)

    def loss_of(part: Shifted) -> LossFunc:
        def loss(logits: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            logprobs, entropy = token_logprobs(logits, part["targets"], 1.0)
            nll = -(logprobs * part["mask"]).sum()
            zero = nll.new_zeros(())
            sums = torch.stack((nll, (entropy * part["mask"]).sum(), zero, zero))
            return nll / batch.num_tokens, _one(logits), {"sums": sums.detach() / batch.num_tokens}

        return loss

    store = _run(learner.model, batch.tokens, rows, packs, loss_of, forward_only=False, tick=tick)
    return _sums(learner.model, store, 4)


def value_gradients(learner: Learner, batch: Batch, packs: Sequence[Pack], config: Config, tick: Tick) -> Tensor:
    """Add up a DP chunk's gradients of the critic. Returns its share of the means [2]: loss, clipped."""
    algo = config.algo
    rows = shift(mask=batch.response, weight=_weights(batch, config), values=batch.values, returns=batch.returns)

    def loss_of(part: Shifted) -> LossFunc:
        def loss(out: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
            result = value_loss(out.squeeze(-1), part["values"], part["returns"], part["mask"], algo.value_clip)
            total = (result.per_token * part["weight"]).sum()
            sums = torch.stack((total, result.clipped_sum / batch.num_tokens))
            return algo.value_coef * total, _one(out), {"sums": sums.detach()}

        return loss

    store = _run(learner.model, batch.tokens, rows, packs, loss_of, forward_only=False, tick=tick)
    return _sums(learner.model, store, 2)


def rehearse(learners: Sequence[Learner], seq: int, config: Config, tick: Tick) -> None:
    """Go forward and backward once, on nothing and alone: what is made at first use is there when a slot is taken."""
    if parallel_state.get_pipeline_model_parallel_world_size() > 1:
        return  # a stage by itself has nothing to go on
    train = config.train
    rows = train.micro_batch if train.micro_tokens is None else train.micro_tokens // seq
    blank, response = torch.zeros(rows, seq), torch.ones(rows, seq)
    batch = Batch(blank.long(), response, blank, blank, blank, blank, blank, float(rows * seq), rows)
    for learner in learners:
        gradients(learner, batch, 0.0, even(rows, rows, seq), config, tick)


def _weights(batch: Batch, config: Config) -> Tensor:
    return token_weights(batch.response, batch.num_tokens, batch.num_sequences, config.algo.aggregate)


def _forward(
    model: torch.nn.Module,
    sequences: Sequences,
    rows: Shifted,
    packs: Sequence[Pack],
    outputs: Callable[[Tensor, Shifted], Tensor],
    tick: Tick | None = None,
) -> Tensor | None:
    """A number [n, seq] float32 at each token, `outputs` of what the model gives there; None but on the last stage."""

    def loss_of(part: Shifted) -> LossFunc:
        return lambda out: (out.new_zeros(()), _one(out), {"out": outputs(out, part).detach()})

    model.eval()
    with torch.no_grad():
        store = _run(model, sequences.tokens, rows, packs, loss_of, forward_only=True, tick=tick)
    model.train()
    if not parallel_state.is_pipeline_last_stage():
        return None
    whole = torch.zeros_like(sequences.response)
    for pack, item in zip(packs, store, strict=True):
        whole[list(pack.rows), : pack.width] = _gather_sequence(item["out"].float()).cpu()
    return whole


def _run(
    model: torch.nn.Module,
    tokens: Tensor,
    rows: Shifted,
    packs: Sequence[Pack],
    loss_of: Callable[[Shifted], LossFunc],
    forward_only: bool,
    tick: Tick | None = None,
) -> list[dict[str, Tensor]]:
    """Megatron-Core's schedule over the micro-batches of this chunk; what the loss functions report (last stage)."""
    device = _device_of(model)

    def forward_step(batches: Iterator[tuple[Tensor, Shifted]], stage: torch.nn.Module) -> tuple[Tensor, LossFunc]:
        if tick is not None:
            tick("forward")
        ids, part = next(batches)
        positions = torch.arange(ids.shape[1], device=device).expand_as(ids)
        out = stage(ids, positions, None)
        if tick is not None and out.requires_grad:
            out.register_hook(lambda _: tick("backward"))
        return out, loss_of(part)

    return get_forward_backward_func()(
        forward_step_func=forward_step,
        data_iterator=_micro_batches(tokens, rows, packs, device),
        model=[model],
        num_microbatches=len(packs),
        seq_length=packs[0].width,  # Megatron-Core itself divides it by cp and tp
        micro_batch_size=len(packs[0].rows),
        forward_only=forward_only,
    )


def _micro_batches(
    tokens: Tensor, rows: Shifted, packs: Sequence[Pack], device: torch.device
) -> Iterator[tuple[Tensor, Shifted]]:
    rank = parallel_state.get_context_parallel_rank()
    size = parallel_state.get_context_parallel_world_size()
    for pack in packs:
        picked = torch.tensor(pack.rows)

        def part(field: Tensor, picked: Tensor = picked, width: int = pack.width) -> Tensor:
            return zigzag(field[picked, :width], rank, size, 1).to(device)

        yield part(tokens), {name: part(row) for name, row in rows.items()}


def _gather_sequence(local: Tensor) -> Tensor:
    group = parallel_state.get_context_parallel_group()
    if group.size() == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(group.size())]
    torch.distributed.all_gather(parts, local.contiguous(), group=group)
    return unzigzag(parts, 1)


def _sums(model: torch.nn.Module, store: list[dict[str, Tensor]], width: int) -> Tensor:
    """The sums over the micro-batches of this chunk [width]; zeros on earlier stages."""
    if not parallel_state.is_pipeline_last_stage():
        return torch.zeros(width, device=_device_of(model))
    return torch.stack([item["sums"] for item in store]).sum(0)


def _device_of(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def _one(like: Tensor) -> Tensor:
    return torch.ones((), dtype=torch.int, device=like.device)


def _last(field: Tensor) -> Tensor:
    return torch.tensor([field.shape[1] - 1])
