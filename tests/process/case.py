"""The one small training problem that the process tests share. Nothing in it depends on a layout."""

from typing import Any

import torch
from torch import Tensor

from ftppo.algo.batch import make_batch
from ftppo.config import Algo, Config, Model, Parallel, Rollout, Train
from ftppo.plan.topology import Layout
from ftppo.rng import generator
from ftppo.types import Answers, Batch, RolloutRequest, Scores, Sequences, StepSpec
from tests.process.calls import PAD, VOCAB

NUM, GROUP, PROMPT, RESPONSE = 8, 4, 16, 16
SEQ = PROMPT + RESPONSE
KL_COEF = 0.1

ONE = Layout()
LAYOUTS = {
    "dp2": Layout(dp=2),
    "tp2": Layout(tp=2),
    "pp2": Layout(pp=2),
    "cp2": Layout(cp=2),
    "tp2pp2": Layout(tp=2, pp=2),
    "tp2cp2": Layout(tp=2, cp=2),
    "dp2tp2pp2": Layout(dp=2, tp=2, pp=2),
}


def config(layout: Layout, **sections: Any) -> Config:
    """Grouped queries, several micro-batches, every term of the losses at work. `sections` replace whole sections."""
    sizes = {axis: getattr(layout, axis) for axis in ("dp", "tp", "pp", "cp")}
    # adam_eps is far above the rounding of gradients: Adam would turn the sign of mere rounding into a whole step.
    base = Config(
        parallel=Parallel(**sizes),
        rollout=Rollout(max_prompt=PROMPT, max_response=RESPONSE),
        train=Train(micro_batch=2, clip_grad=1.0, adam_eps=1e-6),
        algo=Algo(kl_coef=KL_COEF, kl_kind="k3", kl_place="loss", entropy_coef=0.01, dual_clip=1.5, value_clip=0.2),
        model=Model(hidden=64, ffn=128, heads=4, kv_heads=2, init_std=0.1),
    )
    return base.model_copy(update=sections)


def request() -> RolloutRequest:
    """Prompts of different lengths, samples with numbers of no order."""
    draw = generator("request")
    lengths = torch.randint(1, PROMPT + 1, (NUM,), generator=draw)
    tokens = _tokens((NUM, PROMPT), draw).where(torch.arange(PROMPT) < lengths[:, None], PAD)
    return RolloutRequest(0, tokens, lengths, torch.randperm(1000, generator=draw)[:NUM])


def sequences() -> Sequences:
    """Prompts and responses of different lengths."""
    draw = generator("sequences")
    start = torch.randint(1, PROMPT + 1, (NUM, 1), generator=draw)
    end = start + torch.randint(1, RESPONSE + 1, (NUM, 1), generator=draw)
    place = torch.arange(SEQ)
    tokens = _tokens((NUM, SEQ), draw).where(place < end, PAD)
    return Sequences(tokens, ((place >= start) & (place < end)).float())


def batch(scores: Scores, algo: Algo) -> Batch:
    """What an update gets whose models have moved since they scored `scores`, so far that every clip bites."""
    given, draw = sequences(), generator("batch")

    def moved(field: Tensor, by: float) -> Tensor:
        return (field + by * torch.randn(field.shape, generator=draw)) * given.response

    old = Scores(moved(scores.logprobs, 0.5), scores.ref_logprobs, moved(scores.values, 0.3))
    answers = Answers(given, old.logprobs, torch.randn(NUM, generator=draw))
    return make_batch(answers, old, GROUP, algo, KL_COEF)[0]


def spec(step: int = 0) -> StepSpec:
    return StepSpec(
        step=step, iteration=0, kind="ppo", policy_lr=1e-3, critic_lr=1e-3, kl_coef=KL_COEF, version=step + 1
    )


def difference(found: Tensor, wanted: Tensor) -> float:
    """The largest difference, relative to the largest magnitude wanted."""
    assert found.shape == wanted.shape
    return float((found - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30))


def _tokens(shape: tuple[int, int], draw: torch.Generator) -> Tensor:
    return torch.randint(4, VOCAB, shape, generator=draw)
