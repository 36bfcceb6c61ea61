"""A mesh that loses replicas and gets them back: the state goes on from the copies that the other layout made."""

import pytest
import torch

from ftppo.config import Snapshot
from ftppo.plan.topology import Layout, buddies
from tests.process import calls, case
from tests.process.case import ONE, difference
from tests.process.mesh import Mesh
from tests.process.outcome import Observe
from tests.process.world import World, whole

CASES = {
    "tp2": (Layout(dp=2, tp=2), Layout(tp=2)),
    "pp2": (Layout(dp=2, pp=2), Layout(pp=2)),
    "cp2": (Layout(dp=2, cp=2), Layout(cp=2)),
    "dp3 to dp2": (Layout(dp=3), Layout(dp=2)),
}


@pytest.mark.parametrize(("full", "small"), CASES.values(), ids=CASES.keys())
def test_state_goes_from_layout_to_layout_and_back(mesh: Mesh, observe: Observe, full: Layout, small: Layout) -> None:
    batch = observe(ONE).batch
    with World(mesh, case.config(full, snapshot=Snapshot(every_steps=1))) as world:
        mesh.run(world.slots, calls.tell_models_apart)
        world.each("snapshot", 0)
        world.step(case.spec(0), batch)
        mesh.run(world.slots, calls.settle)
        wanted = _state(world)

        # The last replica is lost: of its slots only the copies at their buddies are left.
        lost = {slot: buddies(full)[slot] for slot in full.dp_replica(full.dp - 1)}
        assert not set(lost) & set(lost.values())
        sources = {slot: world.addresses[lost.get(slot, slot)] for slot in range(full.world)}
        world.reshape(small)
        _take_over(world, full, sources, version=1)
        assert _same(_state(world), wanted)
        shrunk = world.step(case.spec(1), batch)
        mesh.run(world.slots, calls.settle)
        moved = _state(world)

        sources = dict(enumerate(world.addresses[: small.world]))
        world.reshape(full)
        _take_over(world, small, sources, version=2)
        assert _same(_state(world), moved)
        world.step(case.spec(2), batch)

        # The same step in the full layout all along.
        world.each("reset")
        mesh.run(world.slots, calls.tell_models_apart)
        world.each("snapshot", 0)
        world.step(case.spec(0), batch)
        unbroken = world.step(case.spec(1), batch)
        assert list(vars(shrunk).values()) == pytest.approx(list(vars(unbroken).values()), rel=1e-4, abs=1e-6)
        found = _state(world)
        assert max(difference(moved[key], found[key]) for key in found) < 1e-4


def _take_over(world: World, layout: Layout, sources: dict[int, tuple[str, int]], version: int) -> None:
    world.each("reshard", version, layout, sources)
    world.each("regain", version)


def _state(world: World) -> dict[str, torch.Tensor]:
    return whole(box for boxes in world.boxes() for box in boxes)


def _same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
