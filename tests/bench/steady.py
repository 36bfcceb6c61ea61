"""What readiness costs while nothing goes wrong. Comes in: rounds; goes out: a table.

Four processes run the optimizer steps of the demo, in turn with all that recovery needs and without: a copy of the
state after every step, sent to the buddy, a beacon that moves, faults that could strike at each move. The processes are
the same ones, as two meshes of them differ by more than is to be measured. No driver and no Ray, which both would have
alike; nor the fence, a number compared once a call.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from ftppo.types import Batch, StepSpec
from ftppo.worker.beacon import Progress
from ftppo.worker.memory import Memory
from tests.bench.pairs import Pairs, table
from tests.bench.update import config_of
from tests.process.mesh import Mesh
from tests.process.world import World

STEPS = 12  # of a round
WARM_UP = 2  # rounds that do not count


def compare(rounds: int) -> str:
    """The ratio is the speed with over that without: 0.98 are two per cent."""
    with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder:
        config = config_of(folder, (), rounds)
        train, rollout = config.train, config.rollout
        num_tokens = STEPS * train.mini_batch * (rollout.max_prompt + rollout.max_response)
        pairs, mesh = Pairs("demo, dp2 tp2, a snapshot each step", num_tokens), Mesh()
        try:
            with World(mesh, config) as world:
                for number in range(rounds + WARM_UP):
                    # Each goes first in every other round: who does finds the processors as the pause has left them.
                    turns = (True, False) if number % 2 else (False, True)
                    spent = {ready: max(mesh.run(world.slots, _steps, ready)) for ready in turns}
                    if number >= WARM_UP:
                        pairs.add(spent[True], spent[False])
        finally:
            mesh.close()
    return table("steady: optimizer steps with all that recovery needs, tokens of the sequences", "bare", [pairs])


def _steps(context: dict[str, Any], rank: int, ready: bool) -> float:
    """Seconds of some steps; where `ready`, until the last copy has arrived."""
    engine = context["engine"]
    batch = _batch(engine.config)
    dist.barrier()
    with contextlib.nullcontext() if ready else _bare():
        started = time.perf_counter()
        for _ in range(STEPS):
            version = engine.version + 1
            spec = StepSpec(version, 0, "ppo", policy_lr=1e-4, critic_lr=1e-4, kl_coef=0.0, version=version)
            engine.ppo_step(spec, batch)
        engine.settle()
        return time.perf_counter() - started


@contextlib.contextmanager
def _bare() -> Iterator[None]:
    """Neither copies nor beacon, but for what hooks of the models tell it: they have had it since they were built."""
    with contextlib.ExitStack() as stack:
        for owner, name in ((Memory, "take"), (Progress, "tick"), (Progress, "enter")):
            stack.enter_context(mock.patch.object(owner, name, lambda *_: None))
        yield


def _batch(config: Any) -> Batch:
    rows, seq = config.train.mini_batch // config.parallel.dp, config.rollout.max_prompt + config.rollout.max_response
    draw = torch.Generator().manual_seed(0)
    response = (torch.arange(seq) >= config.rollout.max_prompt).float().expand(rows, seq).contiguous()
    values, advantages, returns = (torch.randn(rows, seq, generator=draw) * response for _ in range(3))
    tokens = torch.randint(4, 50, (rows, seq), generator=draw)
    old = -4 * response
    num_tokens = float(response.sum()) * config.parallel.dp
    return Batch(tokens, response, old, old, values, advantages, returns, num_tokens, config.train.mini_batch)
