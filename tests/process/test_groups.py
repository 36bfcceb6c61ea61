"""Groups come and go around models that stay: nothing leaks, and survivors of a killed rank go on with a newcomer."""

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ftppo.checkpoint.manifest import Manifest
from ftppo.config import Checkpoint, Config, Snapshot
from ftppo.plan.topology import Layout, buddies
from ftppo.types import Batch
from tests.process import calls, case
from tests.process.mesh import Mesh
from tests.process.outcome import Observe
from tests.process.world import BY_DATA, World

REBUILDS = 20
SIGKILLED = -9

type Collectives = list[tuple[str, int]]  # name, size of the group


def test_rebuilding_leaves_nothing_behind(mesh: Mesh, observe: Observe) -> None:
    sequences, one = case.sequences(), observe(case.ONE).scores
    with World(mesh, case.config(Layout(tp=2))) as world:
        wanted, digests = world.score(sequences), world.digests()
        assert case.difference(wanted.logprobs, one.logprobs) < 1e-4
        assert world.each("release") == [0] * len(world.slots)
        before = mesh.run(world.slots, calls.usage)
        for _ in range(REBUILDS):
            world.join()
            assert world.score(sequences).logprobs.equal(wanted.logprobs)
            assert world.each("release") == [0] * len(world.slots)
        assert mesh.run(world.slots, calls.usage) == before
        assert world.digests() == digests


def test_release_counts_what_somebody_else_holds(mesh: Mesh) -> None:
    with World(mesh, case.config(Layout(tp=2))) as world:
        mesh.run([1], calls.keep_a_group, True)
        assert world.each("release") == [0, 1]
        mesh.run([1], calls.keep_a_group, False)


@dataclass(frozen=True)
class Undisturbed:
    """A checkpoint taken after step 0, and what step 1 makes of it. Lists are by slot."""

    config: Config
    batch: Batch
    manifest: Manifest
    digests: list[str]  # at the checkpoint
    collectives: list[Collectives]  # of step 1, the first after the groups were made
    next_digests: list[str]

    def in_step(self, slot: int, moment: str) -> int:
        """The number of a collective of `slot` in step 1: in a forward pass, over gradients, over moved weights."""
        names = [name for name, _ in self.collectives[slot]]
        match moment:
            case "attention":
                return 1
            case "mlp":  # with TP; without it the next one between stages
                return 2
            case "gradients":
                return names.index("reduce_scatter_tensor_coalesced_")
            case _:
                return names.index("allgather_into_tensor_coalesced_")


@pytest.fixture(scope="module", params=[Layout(dp=2, tp=2), Layout(dp=2, pp=2)], ids=["dp2tp2", "dp2pp2"])
def undisturbed(
    mesh: Mesh, observe: Observe, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Undisturbed:
    knobs = Checkpoint(url=str(tmp_path_factory.mktemp("checkpoints")))
    config, batch = case.config(request.param, checkpoint=knobs), observe(case.ONE).batch
    with World(mesh, config) as world:
        mesh.run(world.slots, calls.tell_models_apart)
        world.step(case.spec(), batch)
        manifest, digests = world.save(1), world.digests()
        world.each("release")
        world.join()
        seen = mesh.run(world.slots, calls.watched, None, *_step(world, batch))
        return Undisturbed(config, batch, manifest, digests, seen, world.digests())


@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("moment", ["attention", "mlp", "gradients"])
def test_survivors_keep_their_state_and_a_newcomer_loads(
    mesh: Mesh, undisturbed: Undisturbed, victim: int, moment: str
) -> None:
    with World(mesh, undisturbed.config) as world:
        world.load(undisturbed.manifest)
        seen = _kill(world, undisturbed, victim, moment)
        assert [one.error for one in seen] == ["RuntimeError"] * 3
        world.join()
        mesh.run([victim], calls.call, *world.arguments("load", undisturbed.manifest))
        mesh.run([victim], calls.call, *world.arguments("snapshot", undisturbed.manifest.step))
        assert world.digests() == undisturbed.digests
        assert mesh.run(world.slots, calls.watched, None, *_step(world, undisturbed.batch)) == undisturbed.collectives
        assert world.digests() == undisturbed.next_digests


@pytest.mark.parametrize("victim", [0, 3])
def test_all_load_where_some_have_moved(mesh: Mesh, undisturbed: Undisturbed, victim: int) -> None:
    with World(mesh, undisturbed.config) as world:
        world.load(undisturbed.manifest)
        seen = _kill(world, undisturbed, victim, "weights")
        assert "RuntimeError" in [one.error for one in seen]
        world.join()
        assert world.digests() != undisturbed.digests
        world.load(undisturbed.manifest)
        assert world.digests() == undisturbed.digests
        world.step(case.spec(1), undisturbed.batch)
        assert world.digests() == undisturbed.next_digests


@pytest.mark.parametrize(("victim", "moment"), [(0, "mlp"), (3, "weights")])
def test_state_comes_back_from_memory(mesh: Mesh, undisturbed: Undisturbed, victim: int, moment: str) -> None:
    config = undisturbed.config.model_copy(update={"snapshot": Snapshot(every_steps=1)})
    with World(mesh, config) as world:
        world.load(undisturbed.manifest)
        world.each("snapshot", 1)
        assert mesh.run(world.slots, calls.settle) == [1] * len(world.slots)
        wanted = world.score(case.sequences())
        _kill(world, undisturbed, victim, moment)
        world.join()
        world.each("restore", 1, {victim: world.addresses[buddies(world.layout)[victim]]})
        world.each("regain", 1)
        found = world.score(case.sequences())
        assert all(torch.equal(getattr(found, name), tensor) for name, tensor in vars(wanted).items())
        world.step(case.spec(1), undisturbed.batch)
        assert world.digests() == undisturbed.next_digests
        assert mesh.run(world.slots, calls.settle) == [2] * len(world.slots)


def test_a_survivor_and_a_newcomer_make_the_same_collectives(mesh: Mesh, undisturbed: Undisturbed) -> None:
    victim, peer = 3, 1 if undisturbed.config.parallel.tp == 2 else 2
    with World(mesh, undisturbed.config) as world:
        assert peer in world.layout.group("dp", victim)
        world.step(case.spec(), undisturbed.batch)  # the survivors remember an earlier step
        _kill(world, undisturbed, victim, "mlp")
        world.join()
        world.each("snapshot", 1)
        seen = mesh.run(world.slots, calls.watched, None, *_step(world, undisturbed.batch))
        assert seen[victim] == seen[peer] == undisturbed.collectives[victim]


def _kill(world: World, undisturbed: Undisturbed, victim: int, moment: str) -> list[calls.Bereaved]:
    """End `victim` inside a collective of step 1; what the others saw. A fresh process has built its slot, alone."""
    others = [slot for slot in world.slots if slot != victim]
    arguments = _step(world, undisturbed.batch)
    world.mesh.start([victim], calls.watched, undisturbed.in_step(victim, moment), *arguments)
    world.mesh.start(others, calls.bereaved, *arguments)
    seen: list[calls.Bereaved] = world.mesh.finish(others)
    assert [one.groups_alive for one in seen] == [0] * len(others)
    assert world.replace(victim) == SIGKILLED
    return seen


def _step(world: World, batch: Batch) -> tuple[Any, ...]:
    return world.arguments("ppo_step", case.spec(1), rows=batch, via=BY_DATA)
