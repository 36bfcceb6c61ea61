"""Optimizers whose state a layout cuts its own way: what any layout has saved, any other takes over to the bit.

There is one kind of optimizer state in a checkpoint, boxes of logical tensors, and no setting for another: nothing that
could not be taken over is ever saved.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.manifest import Manifest
from ftppo.config import Checkpoint, Config
from ftppo.plan.topology import Layout
from tests.process import calls, case
from tests.process.case import LAYOUTS, ONE
from tests.process.mesh import Mesh
from tests.process.outcome import Observe
from tests.process.world import World, whole

NAMES = ("dp2", "tp2", "pp2", "cp2")  # moments flat over data or context ranks, or cut by tensor or stage
PAIRS = [(saved, loaded) for saved in NAMES for loaded in NAMES if saved != loaded]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoints")


@pytest.fixture(scope="module")
def saved(mesh: Mesh, observe: Observe, folder: Path) -> dict[str, tuple[Manifest, dict[str, Tensor]]]:
    """Of each layout, a checkpoint after a step and the state that went into it."""
    found, batch = {}, observe(ONE).batch
    for name in NAMES:
        with World(mesh, configured(LAYOUTS[name], folder / name)) as world:
            mesh.run(world.slots, calls.tell_models_apart)
            assert not world.step(case.spec(), batch).skipped
            found[name] = world.save(1), state_of(world)
    return found


@pytest.mark.parametrize(("origin", "target"), PAIRS)
def test_every_layout_takes_over_the_optimizers_of_every_other(
    mesh: Mesh, saved: dict[str, tuple[Manifest, dict[str, Tensor]]], folder: Path, origin: str, target: str
) -> None:
    manifest, wanted = saved[origin]
    kinds = {key.split(".")[2] for key in wanted if key.startswith("optimizer.state.")}
    assert kinds == {"exp_avg", "exp_avg_sq", "fp32_param"}
    assert all(wanted[key].any() for key in wanted if "optimizer.state.exp_avg" in key and "embedding" not in key)
    with World(mesh, configured(LAYOUTS[target], folder / origin, seed=1)) as world:
        world.load(manifest)
        found = state_of(world)
    assert found.keys() == wanted.keys()
    assert [key for key, tensor in wanted.items() if not torch.equal(found[key], tensor)] == []


def configured(layout: Layout, folder: Path, seed: int = 0) -> Config:
    model = case.config(ONE).model.model_copy(update={"dtype": "bf16"})
    return case.config(layout, model=model, checkpoint=Checkpoint(url=str(folder)), seed=seed)


def state_of(world: World) -> dict[str, Tensor]:
    return whole(box for boxes in world.boxes() for box in boxes)
