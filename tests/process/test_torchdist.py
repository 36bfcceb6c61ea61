"""Stock megatron-core and ftppo read each other's checkpoints, in whatever layout either is, weights to the bit."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.torchdist.reader import check_weights
from ftppo.config import Checkpoint
from ftppo.plan.topology import Layout
from tests.process import calls, case, stock
from tests.process.case import LAYOUTS, ONE
from tests.process.mesh import Mesh
from tests.process.pretrained import is_policy
from tests.process.world import World, whole

NUMBERED = {"non_homogeneous_layers": True}
SHARDINGS = ("dp_reshardable", "fully_reshardable")  # of optimizers: what megatron-core 0.19 can save
# layout, the function that saves, its last argument
SAVED: dict[str, tuple[Layout, Any, Any]] = {
    "tp2": (LAYOUTS["tp2"], stock.save_policy, {}),
    "pp2, layers numbered": (LAYOUTS["pp2"], stock.save_policy, NUMBERED),
} | {f"dp2, {kind}": (LAYOUTS["dp2"], stock.save_learner, kind) for kind in SHARDINGS}
LOADED = [ONE, LAYOUTS["tp2"], LAYOUTS["pp2"]]


@dataclass(frozen=True)
class Stock:
    """A folder that megatron-core has saved to, and the weights that went into it."""

    folder: Path
    weights: dict[str, Tensor]


@pytest.fixture(scope="module", params=SAVED)
def saved(request: pytest.FixtureRequest, mesh: Mesh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    folder = tmp_path_factory.mktemp("stock")
    layout, save, how = SAVED[request.param]
    with World(mesh, case.config(layout)) as world:
        mesh.run(world.slots, save, folder, how)
        weights = _policy(_state(world))
    mesh.close()  # megatron-core's writer leaves more in a process than is to be counted elsewhere
    yield Stock(folder, weights)


@pytest.mark.parametrize("layout", LOADED, ids=str)
def test_a_run_begins_with_what_megatron_has_saved(mesh: Mesh, saved: Stock, layout: Layout) -> None:
    model = case.config(layout).model.model_copy(update={"weights": str(saved.folder)})
    config = case.config(layout, model=model, seed=1)
    check_weights(config, calls.VOCAB)
    with World(mesh, config) as world:
        state = _state(world)
    assert _equal(_policy(state), saved.weights)
    assert _equal(_policy(state, "reference."), saved.weights)
    critic = _policy(state, "critic.")
    assert not critic.pop("output_layer.weight").any()
    assert _equal(critic, {key: tensor for key, tensor in saved.weights.items() if key != "output_layer.weight"})


@pytest.mark.parametrize("layout", LOADED, ids=str)
def test_megatron_loads_what_a_run_has_saved(mesh: Mesh, tmp_path: Path, layout: Layout) -> None:
    saving = case.config(Layout(dp=2, tp=2), checkpoint=Checkpoint(url=str(tmp_path)))
    with World(mesh, saving) as world:
        folder = tmp_path / world.save(1).prefix
        weights = _policy(_state(world))
    with World(mesh, case.config(layout, seed=1)) as world:
        assert not _equal(_policy(_state(world)), weights)
        mesh.run(world.slots, stock.load_policy, folder)
        assert _equal(_policy(_state(world)), weights)
    mesh.close()


def _state(world: World) -> dict[str, Tensor]:
    return whole(box for boxes in world.boxes() for box in boxes)


def _policy(state: dict[str, Tensor], prefix: str = "") -> dict[str, Tensor]:
    """The weights of the policy, or of the model whose names begin with `prefix`."""
    found = {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
    return {key: tensor for key, tensor in found.items() if is_policy(key)}


def _equal(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    return found.keys() == wanted.keys() and all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
