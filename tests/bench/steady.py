"""What readiness costs while nothing goes wrong. Comes in: rounds; goes out: a table.

Two meshes of four processes run the optimizer steps of the demo in turn. One does all that recovery needs: a copy of
the state after every step, sent to the buddy, a beacon that moves, faults that could strike at each move. The other
does none of it. No driver and no Ray, which both would have alike; nor the fence, a number compared once a call.
"""

import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist

from ftppo.types import Batch, StepSpec
from ftppo.worker.beacon import Progress
from tests.bench.pairs import Pairs, table
from tests.bench.update import config_of
from tests.process.mesh import Mesh
from tests.process.world import World

STEPS = 12  # of a round
WARM_UP = 2  # rounds that do not count


def compare(rounds: int) -> str:
    """The ratio is the speed with over that without: 0.98 are two per cent."""
    with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder:
        ready = config_of(folder, (), rounds)
        bare = config_of(folder, ("snapshot.every_steps=0",), rounds)
        train, rollout = ready.train, ready.rollout
        num_tokens = STEPS * train.mini_batch * (rollout.max_prompt + rollout.max_response)
        pairs = Pairs("demo, dp2 tp2, a snapshot each step", num_tokens)
        ours, other = Mesh(), Mesh()
        try:
            with World(ours, ready) as one, World(other, bare) as two:
                other.run(two.slots, _stop_the_beacon)
                for number in range(rounds + WARM_UP):
                    spent = [max(world.mesh.run(world.slots, _steps, number)) for world in (one, two)]
                    if number >= WARM_UP:
                        pairs.add(*spent)
        finally:
            ours.close()
            other.close()
    return table("steady: optimizer steps with all that recovery needs, tokens of the sequences", "bare", [pairs])


def _stop_the_beacon(context: dict[str, Any], rank: int) -> None:
    Progress.tick = Progress.enter = lambda *_: None  # type: ignore[method-assign,assignment]


def _steps(context: dict[str, Any], rank: int, number: int) -> float:
    engine = context["engine"]
    if number == 0:
        engine.snapshot(0)
    batch = _batch(engine.config)
    dist.barrier()
    started = time.perf_counter()
    for version in range(number * STEPS + 1, (number + 1) * STEPS + 1):
        engine.ppo_step(
            StepSpec(version, 0, "ppo", policy_lr=1e-4, critic_lr=1e-4, kl_coef=0.0, version=version), batch
        )
    return time.perf_counter() - started


def _batch(config: Any) -> Batch:
    rows, seq = config.train.mini_batch // config.parallel.dp, config.rollout.max_prompt + config.rollout.max_response
    draw = torch.Generator().manual_seed(0)
    response = (torch.arange(seq) >= config.rollout.max_prompt).float().expand(rows, seq).contiguous()
    values, advantages, returns = (torch.randn(rows, seq, generator=draw) * response for _ in range(3))
    tokens = torch.randint(4, 50, (rows, seq), generator=draw)
    old = -4 * response
    num_tokens = float(response.sum()) * config.parallel.dp
    return Batch(tokens, response, old, old, values, advantages, returns, num_tokens=num_tokens)
