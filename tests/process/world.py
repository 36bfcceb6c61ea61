"""One layout on a mesh of processes, from the test's side: forms generations, spreads calls as the driver does."""

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor

from ftppo.checkpoint.exchange import Address
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.config import Config, Parallel
from ftppo.driver.dispatch import dispatch_of
from ftppo.plan.topology import Layout, buddies
from ftppo.types import Batch, Rewards, RolloutRequest, RolloutResult, Scores, Sequences, StepResult, StepSpec
from ftppo.worker.meeting import Rendezvous
from tests.process import calls
from tests.process.mesh import Mesh

BY_DATA, BY_PROMPT, TO_ALL, TO_FIRST = map(dispatch_of, ("mesh", "mesh_shared", "pass_through", "first_slot"))


class World:
    """Builds every slot and joins generation 1; a context manager, so that no group outlives a test."""

    def __init__(self, mesh: Mesh, config: Config, eos: int = calls.EOS, kind: calls.Kind = "cpu") -> None:
        self.mesh, self.config, self.eos, self.kind = mesh, config, eos, kind
        self.layout = layout_of(config)
        self.slots = range(self.layout.world)
        self.generation = 0
        self.addresses: list[Address] = mesh.run(self.slots, calls.build, config, eos, kind)
        self.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.each("release")
        else:
            self.mesh.close()  # ranks may wait for one another

    def join(self) -> None:
        """All slots enter the next generation."""
        self.generation += 1
        [port] = self.mesh.run([0], calls.open_store)
        holders = [self.addresses[holder] for _, holder in sorted(buddies(self.layout).items())]
        self.mesh.run(self.slots, calls.join, Rendezvous(self.generation, "127.0.0.1", port), holders)

    def replace(self, slot: int) -> int:
        """A fresh process where one has died; it builds the slot, alone. Returns the exit code of the old one."""
        code = self.mesh.replace(slot)
        [self.addresses[slot]] = self.mesh.run([slot], calls.build, self.config, self.eos, self.kind)
        return code

    def reshape(self, layout: Layout) -> None:
        """All slots of `layout`, on the processes of the same numbers, enter a generation of it with weights as drawn.

        Processes that are needed besides are fresh.
        """
        self.each("release")
        fresh = range(self.layout.world, layout.world)  # empty where the mesh shrinks
        self.mesh.run(range(min(layout.world, self.layout.world)), calls.rebuild, layout)
        sizes = Parallel(dp=layout.dp, tp=layout.tp, pp=layout.pp, cp=layout.cp)
        self.config = self.config.model_copy(update={"parallel": sizes})
        self.layout, self.slots = layout, range(layout.world)
        if fresh:
            self.addresses[fresh.start : fresh.stop] = self.mesh.run(
                fresh, calls.build, self.config, self.eos, self.kind
            )
        self.join()

    def arguments(self, method: str, *shared: Any, rows: Any = None, via: Any = TO_ALL) -> tuple[Any, ...]:
        """What `calls.call` needs to run Engine.`method`."""
        which = [via.shard_of(self.layout, slot) for slot in self.slots]
        return method, shared, via.shards(self.layout, rows) if rows is not None else [], which

    def each(self, method: str, *shared: Any, rows: Any = None, via: Any = TO_ALL) -> list[Any]:
        """Results of Engine.`method` on every slot."""
        return self.mesh.run(self.slots, calls.call, *self.arguments(method, *shared, rows=rows, via=via))

    def rollout(self, request: RolloutRequest) -> RolloutResult:
        result: RolloutResult = self.merged("rollout", rows=request, via=BY_PROMPT)
        return result

    def score(self, sequences: Sequences) -> Scores:
        scores: Scores = self.merged("score", rows=sequences, via=BY_DATA)
        return scores

    def reward(self, sequences: Sequences) -> Rewards:
        rewards: Rewards = self.merged("reward", rows=sequences, via=BY_DATA)
        return rewards

    def step(self, spec: StepSpec, batch: Batch) -> StepResult:
        """An optimizer step; its scalars, which all collectors must agree on."""
        results = self.each("ppo_step", spec, rows=batch, via=BY_DATA)
        first, *others = (results[slot] for slot in self.layout.collectors())
        assert all(other == first for other in others)
        return first

    def save(self, step: int, meanwhile: Callable[[], object] = lambda: None) -> Manifest:
        """A published checkpoint; `meanwhile` is done as soon as the save has begun."""
        header = Header(
            run="test",
            step=step,
            iteration=0,
            generation=self.generation,
            uid="a",
            layout={axis: getattr(self.layout, axis) for axis in ("dp", "tp", "pp", "cp")},
            config_digest="",
            model=self.config.model.model_dump(mode="json"),
            state={},
        )
        self.each("begin_save", header.prefix)
        meanwhile()
        written = self.each("end_save")
        self.merged("begin_publish", header, rows=written, via=TO_FIRST)
        manifest: Manifest = self.merged("end_publish", via=TO_FIRST)
        return manifest

    def load(self, manifest: Manifest) -> list[int]:
        """Fill every slot from a checkpoint; the bytes that each has fetched."""
        fetched = self.each("load", manifest)
        self.each("snapshot", manifest.step)
        return fetched

    def digests(self) -> list[str]:
        return self.each("digest")

    def boxes(self) -> list[list[calls.Box]]:
        """All parts of the state, by slot."""
        return self.mesh.run(self.slots, calls.boxes)

    def merged(self, method: str, *shared: Any, rows: Any = None, via: Any = TO_ALL) -> Any:
        """What Engine.`method` on every slot comes to, as Mesh.call has it."""
        results = self.each(method, *shared, rows=rows, via=via)
        return via.merge([results[slot] for slot in via.collectors(self.layout)])


def layout_of(config: Config) -> Layout:
    return Layout(**{axis: getattr(config.parallel, axis) for axis in ("dp", "tp", "pp", "cp")})


def whole(boxes: Iterable[calls.Box]) -> dict[str, Tensor]:
    """Logical tensors put together from the boxes marked mine. Asserts that these cover every element once."""
    tensors: dict[str, Tensor] = {}
    covered: dict[str, Tensor] = {}
    for box in (box for box in boxes if box.mine):
        place = tuple(slice(at, at + n) for at, n in zip(box.offset, box.tensor.shape, strict=True))
        tensors.setdefault(box.key, torch.zeros(box.shape))[place] = box.tensor
        covered.setdefault(box.key, torch.zeros(box.shape))[place] += 1
    uneven = [key for key, count in covered.items() if not torch.equal(count, torch.ones_like(count))]
    assert not uneven, f"not tiled once: {uneven}"
    return tensors
