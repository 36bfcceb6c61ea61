"""Micro-batches by length against micro-batches by number. Comes in: rounds; goes out: a table.

One Engine takes the same optimizer step of policy and critic both ways in turn. Answers have log-normal lengths: many
short ones, few long. A micro-batch has the same room either way, as many tokens, padding included.
"""

import time

import torch

from ftppo.config import Config, Model, Parallel, Rollout, Train
from ftppo.driver.minibatch import mini_batch
from ftppo.plan.packing import by_length
from ftppo.rng import generator
from ftppo.types import Batch, StepSpec, lengths_of
from tests.bench.pairs import Pairs, table
from tests.process import calls
from tests.process.mesh import Mesh
from tests.process.world import World

WARM_UP = 1  # rounds that do not count
NUM, PROMPT, RESPONSE = 128, 32, 224
SEQ = PROMPT + RESPONSE
ROOM = 8 * SEQ  # tokens of a micro-batch

BY_LENGTH = Config(
    model=Model(layers=2, hidden=128, ffn=256, heads=4, kv_heads=2),
    rollout=Rollout(max_prompt=PROMPT, max_response=RESPONSE),
    train=Train(mini_batch=NUM, micro_tokens=ROOM),
)
BY_NUMBER = BY_LENGTH.model_copy(update={"train": Train(mini_batch=NUM, micro_batch=ROOM // SEQ)})


def compare(rounds: int) -> str:
    """A table with a row for each layout, both sides measured in turn `rounds` times."""
    mesh = Mesh()
    try:
        pairs = [_case(mesh, dp, rounds) for dp in (1, 2)]
    finally:
        mesh.close()
    return table("padding: tokens of the answers and their prompts in an update", "equal numbers", pairs)


def _case(mesh: Mesh, dp: int, rounds: int) -> Pairs:
    ours, other = (one.model_copy(update={"parallel": Parallel(dp=dp)}) for one in (BY_LENGTH, BY_NUMBER))
    given = batch()
    pairs = Pairs(f"dp {dp}, padding {padding(given, ours):.0%}, else {padding(given, other):.0%}", _num_tokens(given))
    with World(mesh, ours) as world:
        for number in range(rounds + WARM_UP):
            seconds = [
                _step(mesh, world, config, given, 2 * number + side) for side, config in enumerate((ours, other))
            ]
            if number >= WARM_UP:
                pairs.add(*seconds)
    return pairs


def batch() -> Batch:
    """Prompts of all lengths, answers of log-normal ones, 60 tokens in the middle."""
    draw = generator("padding")
    start = torch.randint(1, PROMPT + 1, (NUM, 1), generator=draw)
    length = torch.randn(NUM, 1, generator=draw).mul(0.8).add(4.1).exp().long().clamp(1, RESPONSE)
    place = torch.arange(SEQ)
    response = ((place >= start) & (place < start + length)).float()
    blank = torch.zeros(NUM, SEQ)
    tokens = torch.randint(4, calls.VOCAB, (NUM, SEQ), generator=draw)
    advantages = torch.randn(NUM, 1, generator=draw) * response
    return Batch(tokens, response, blank, blank, blank, advantages, blank, float(response.sum()), NUM)


def padding(given: Batch, config: Config) -> float:
    """The share of padding in what the models compute."""
    tokens = config.train.micro_tokens
    if tokens is None:
        return 1 - _num_tokens(given) / (NUM * SEQ)
    found = mini_batch(given, 0, 0, config, config.parallel.dp)
    shares = [lengths_of(share.response) for share in found.split(config.parallel.dp)]
    packs = [pack for share in shares for pack in by_length(share, tokens, config.length_unit, found.num_micro)]
    return 1 - _num_tokens(given) / sum(len(pack.rows) * pack.width for pack in packs)


def _num_tokens(given: Batch) -> int:
    return sum(lengths_of(given.response))


def _step(mesh: Mesh, world: World, config: Config, given: Batch, number: int) -> float:
    """Seconds of a step under `config`."""
    mesh.run(world.slots, calls.with_config, config)
    rows = mini_batch(given, 0, 0, config, config.parallel.dp)
    spec = StepSpec(number, 0, "ppo", policy_lr=1e-5, critic_lr=1e-5, kl_coef=0.0, version=number + 1)
    started = time.perf_counter()
    result = world.step(spec, rows)
    assert not result.skipped
    return time.perf_counter() - started
