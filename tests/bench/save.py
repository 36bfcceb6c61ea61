"""A checkpoint to a folder against megatron-core's own synchronous one. Comes in: rounds; goes out: a table.

Both save the same live state, policy and critic in bfloat16 with float32 weights and moments, in turn, from one process
a rank with one thread, without Ray. ftppo: a Saver as the program has it, asynchronous, twice a round. `total` is from
the request to the manifest, while nothing trains: on a machine with GPUs the upload has the processors. `stall` is for
how long a training stands still that goes on with a rollout, scores and a step of a few sequences. Megatron-core:
`dist_checkpointing.save` with its default strategy, the state dict made before the clock starts, moments as
`dp_reshardable`, its cheapest. A first round does not count: its writer starts a process then.
"""

import functools
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.utils import add_prefix_for_sharding

from ftppo.clock import SystemClock
from ftppo.config import Checkpoint, Model, Snapshot
from ftppo.driver.dispatch import dispatch_of
from ftppo.driver.record import CheckpointRecord
from ftppo.driver.saver import Saver
from ftppo.plan.roster import Roster
from ftppo.plan.topology import Layout
from ftppo.types import DriverState
from tests.bench.pairs import aligned
from tests.process import calls, case, stock
from tests.process.mesh import Mesh
from tests.process.world import World

WARM_UP = 1  # rounds that do not count
DEADLINE_S = 600.0  # of one call
LOOK_EVERY_S = 0.005
HEAD = ["case", "MiB", "stall s", "total s", "megatron-core s", "stall of it", "total of it"]

SMALL = Model(layers=4, hidden=256, ffn=704, heads=8, kv_heads=4, dtype="bf16")
LARGE = Model(layers=8, hidden=512, ffn=1408, heads=8, kv_heads=4, dtype="bf16")
SHAPES = {"hidden 256": SMALL, "hidden 512": LARGE}
LAYOUTS = {"1 rank": Layout(), "4 ranks": Layout(dp=2, tp=2), "8 ranks": Layout(dp=2, tp=2, pp=2)}


@dataclass
class Case:
    """`seconds` of each round: stall and total of ftppo, megatron-core's."""

    name: str
    num_bytes: int = 0
    seconds: list[tuple[float, float, float]] = field(default_factory=list)

    def row(self) -> list[str]:
        """Medians, and the medians of the shares, round by round."""
        medians = [f"{statistics.median(side):.3f}" for side in zip(*self.seconds, strict=True)]
        shares = [statistics.median(one[side] / one[-1] for one in self.seconds) for side in (0, 1)]
        return [self.name, f"{self.num_bytes / 2**20:.0f}", *medians, *(f"{share:.0%}" for share in shares)]


def compare(rounds: int, shapes: dict[str, Model] = SHAPES, layouts: dict[str, Layout] = LAYOUTS) -> str:
    """A row for each state and number of ranks, both sides in turn `rounds` times."""
    found = [
        _case(f"{shape}, {ranks}", model, layout, rounds)
        for shape, model in shapes.items()
        for ranks, layout in layouts.items()
    ]
    return aligned("save: to a folder", [HEAD, *(one.row() for one in found)])


def _case(name: str, model: Model, layout: Layout, rounds: int) -> Case:
    found, mesh = Case(name), Mesh(DEADLINE_S)
    with tempfile.TemporaryDirectory(prefix="ftppo-bench-") as folder:
        knobs = Checkpoint(url=f"{folder}/ours", keep_last=1, asynchronous=True)
        config = case.config(layout, model=model, snapshot=Snapshot(every_steps=0), checkpoint=knobs)
        try:
            with World(mesh, config) as world:
                _measure(found, world, Path(folder) / "other", rounds)
        finally:
            mesh.close()
    return found


def _measure(found: Case, world: World, folder: Path, rounds: int) -> None:
    saver = Saver(world.config, SystemClock())
    world.mesh.run(world.slots, make_state_dict)
    try:
        for number in range(rounds + WARM_UP):
            total_s = _save(saver, world, 2 * number).total_s
            beside = _save(saver, world, 2 * number + 1, train=functools.partial(_train, world, number))
            found.num_bytes = beside.bytes
            folder.mkdir()
            other_s = max(world.mesh.run(world.slots, save_as_megatron, folder))
            other_bytes = sum(file.stat().st_size for file in folder.iterdir())
            assert other_bytes > 0.9 * found.num_bytes, f"{other_bytes} bytes saved by megatron-core"
            shutil.rmtree(folder)
            if number >= WARM_UP:
                found.seconds.append((beside.stall_s, total_s, other_s))
    finally:
        if world.mesh.processes:  # none where a rank has failed
            world.mesh.run(world.slots, stock.end_children)


def _save(saver: Saver, world: World, step: int, train: Callable[[], object] = lambda: None) -> CheckpointRecord:
    ranks = cast(Any, _Ranks(world))
    saver.begin(ranks, DriverState(iteration=step, step=step))
    train()
    saved = None
    while saved is None:
        world.mesh.run(world.slots, wait_until_idle)
        saved = saver.advance(ranks)
    saver.settle()
    return saved


def _train(world: World, step: int) -> None:
    world.rollout(case.request())
    scores = world.score(case.sequences())
    assert not world.step(case.spec(step), case.batch(scores, world.config.algo)).skipped


class _Ranks:
    """What a Saver needs of the driver's mesh, on a World."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.roster = Roster(world.generation, world.layout, tuple(f"a{slot}" for slot in world.slots))

    def call(
        self, method: str, *shared: Any, rows: Any = None, via: str = "pass_through", phase: str, deadline_s: float
    ) -> Any:
        return self.world.merged(method, *shared, rows=rows, via=dispatch_of(via))


def wait_until_idle(context: calls.Context, slot: int) -> None:
    """Until this rank has written, or published; the driver hears of it with its other calls."""
    while not context["engine"].durable.idle:
        time.sleep(LOOK_EVERY_S)


def make_state_dict(context: calls.Context, slot: int) -> None:
    """The live state as megatron-core describes it."""
    engine = context["engine"]
    state: dict[str, Any] = {}
    with engine.device.building(), torch.no_grad():
        for learner in engine.learners:
            model = learner.module.sharded_state_dict()
            optimizer = learner.optimizer.sharded_state_dict(
                model, metadata={"distrib_optim_sharding_type": "dp_reshardable"}
            )
            for kind, part in (("model", model), ("optimizer", optimizer)):
                add_prefix_for_sharding(part, f"{learner.role}.")
                state[f"{learner.role}.{kind}"] = part
    context["state dict"] = state


def save_as_megatron(context: calls.Context, slot: int, folder: Path) -> float:
    """Seconds on this rank."""
    dist.barrier()
    started = time.perf_counter()
    stock.save_as_megatron(context, dict(context["state dict"]), folder)
    return time.perf_counter() - started
