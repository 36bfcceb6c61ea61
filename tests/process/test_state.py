"""A rank's state as parts of logical tensors: alike in every layout, whole, and carried from one layout to another."""

import dataclasses
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import Item
from ftppo.checkpoint.manifest import Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.config import Checkpoint
from ftppo.plan.topology import Layout
from ftppo.storage.local import LocalStore
from ftppo.types import Scores, StepResult
from ftppo.worker import durable
from tests.process import calls, case
from tests.process.calls import Box
from tests.process.case import LAYOUTS, ONE, difference
from tests.process.mesh import Mesh
from tests.process.outcome import Observe
from tests.process.world import World, whole

SAVED = Layout(dp=2, tp=2)
LOADED = {"tp2": Layout(tp=2), "dp4": Layout(dp=4), "pp2": Layout(pp=2), "dp2cp2": Layout(dp=2, cp=2)}
SHARING = {name: layout for name, layout in LAYOUTS.items() if layout.world > layout.pp}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_layout_draws_the_same_weights_and_tiles_them_once(observe: Observe, layout: Layout) -> None:
    found, wanted = whole(observe(layout).drawn), whole(observe(ONE).drawn)
    assert found.keys() == wanted.keys()
    assert [key for key in wanted if not torch.equal(found[key], wanted[key])] == []


def test_drawn_weights_are_those_of_the_start(observe: Observe) -> None:
    drawn = whole(observe(ONE).drawn)
    policy = [key for key in drawn if not key.startswith(("critic.", "reference.", "optimizer."))]
    assert all(torch.equal(drawn[key], drawn[f"reference.{key}"]) for key in policy)
    trunk = [key for key in policy if not key.startswith("output_layer") and "norm" not in key]
    assert trunk and all(not torch.equal(drawn[key], drawn[f"critic.{key}"]) for key in trunk)
    assert not drawn["critic.output_layer.weight"].any()
    assert {"exp_avg", "exp_avg_sq"} == {key.split(".")[2] for key in drawn if key.startswith("optimizer.state.")}
    assert not any(tensor.any() for key, tensor in drawn.items() if "optimizer.state." in key)
    layers = drawn["decoder.layers.mlp.linear_fc1.weight"]
    assert not torch.equal(layers[0], layers[1])


@pytest.mark.parametrize("layout", SHARING.values(), ids=SHARING.keys())
def test_copies_on_other_ranks_are_equal(observe: Observe, layout: Layout) -> None:
    boxes = observe(layout).drawn
    weights = whole(boxes)
    assert all(torch.equal(box.tensor, _cut(weights[box.key], box)) for box in boxes)
    assert any(not box.mine for box in boxes)


@dataclass(frozen=True)
class Saved:
    """A checkpoint taken after one step, and how its writers went on."""

    knobs: Checkpoint
    manifest: Manifest
    digests: list[str]  # at the checkpoint, by slot
    next: "Next"


@dataclass(frozen=True)
class Next:
    """What follows a checkpoint."""

    scores: Scores
    result: StepResult
    state: dict[str, Tensor]
    digests: list[str]


@pytest.fixture(scope="module")
def saved(mesh: Mesh, observe: Observe, tmp_path_factory: pytest.TempPathFactory) -> Saved:
    knobs = Checkpoint(url=str(tmp_path_factory.mktemp("checkpoints")))
    with World(mesh, case.config(SAVED, checkpoint=knobs)) as world:
        mesh.run(world.slots, calls.tell_models_apart)
        world.step(case.spec(), observe(ONE).batch)
        manifest, digests = world.save(1), world.digests()
        return Saved(knobs, manifest, digests, _go_on(world, observe))


@pytest.mark.parametrize("layout", LOADED.values(), ids=LOADED.keys())
def test_another_layout_goes_on_from_a_checkpoint(mesh: Mesh, observe: Observe, saved: Saved, layout: Layout) -> None:
    with World(mesh, case.config(layout, checkpoint=saved.knobs, seed=1)) as world:
        world.load(saved.manifest)
        found, wanted = _go_on(world, observe), saved.next
    for field in dataclasses.fields(Scores):
        assert difference(getattr(found.scores, field.name), getattr(wanted.scores, field.name)) < 1e-4, field.name
    assert dataclasses.asdict(found.result) == pytest.approx(dataclasses.asdict(wanted.result), rel=1e-4, abs=1e-6)
    assert found.state.keys() == wanted.state.keys()
    apart = {key: difference(found.state[key], tensor) for key, tensor in wanted.state.items()}
    assert {key: by for key, by in apart.items() if by >= 1e-4} == {}


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_every_layout_takes_over_the_state_to_the_bit_and_fetches_what_it_needs(
    mesh: Mesh, dtype: str, tmp_path: Path
) -> None:
    knobs = Checkpoint(url=str(tmp_path))
    model = case.config(ONE).model.model_copy(update={"dtype": dtype})
    with World(mesh, case.config(SAVED, checkpoint=knobs, model=model)) as world:
        mesh.run(world.slots, _shift)
        manifest, wanted = world.save(1), _state(world)
    assert any("fp32_param" in key for key in wanted) == (dtype == "bf16")
    items = Catalog(LocalStore(tmp_path)).index(manifest).items
    for layout in LOADED.values():
        with World(mesh, case.config(layout, checkpoint=knobs, model=model, seed=1)) as world:
            fetched, boxes = world.load(manifest), world.boxes()
            found = _state(world)
        assert found.keys() == wanted.keys()
        assert [key for key, tensor in wanted.items() if not torch.equal(found[key], tensor)] == []
        assert fetched == [sum(item.length for item in items if _needs(rank, item)) for rank in boxes]
        assert max(fetched) < sum(item.length for item in items)


def test_the_same_layout_goes_on_bit_for_bit(mesh: Mesh, observe: Observe, saved: Saved) -> None:
    with World(mesh, case.config(SAVED, checkpoint=saved.knobs, seed=1)) as world:
        assert world.digests() != saved.digests
        world.load(saved.manifest)
        assert world.digests() == saved.digests
        found = _go_on(world, observe)
    assert found.result == saved.next.result and found.digests == saved.next.digests
    assert all(torch.equal(found.state[key], tensor) for key, tensor in saved.next.state.items())


@pytest.mark.parametrize("change", ["ppo_step", "begin_ppo", "reset"])
def test_a_save_holds_the_state_it_was_asked_for_whatever_comes_next(
    mesh: Mesh, observe: Observe, tmp_path: Path, change: str
) -> None:
    with World(mesh, case.config(SAVED, checkpoint=Checkpoint(url=str(tmp_path)))) as world:
        mesh.run(world.slots, calls.tell_models_apart)
        world.step(case.spec(0), observe(ONE).batch)
        wanted = world.digests()
        mesh.run(world.slots, _copy_slowly)

        def move() -> None:
            if change == "ppo_step":
                world.step(case.spec(1), observe(ONE).batch)
            else:
                world.each(change, *([9] if change == "begin_ppo" else []))

        manifest = world.save(1, meanwhile=move)
        assert world.digests() != wanted
        world.load(manifest)
        assert world.digests() == wanted


def test_reset_goes_back_to_the_start(mesh: Mesh, observe: Observe) -> None:
    with World(mesh, case.config(SAVED)) as world:
        start = world.digests()
        first = world.step(case.spec(), observe(ONE).batch)
        moved = world.digests()
        world.each("reset")
        world.each("snapshot", 0)
        assert world.digests() == start
        assert world.step(case.spec(), observe(ONE).batch) == first and world.digests() == moved


def test_a_step_whose_turn_has_not_come_moves_nobody(mesh: Mesh, observe: Observe) -> None:
    with World(mesh, case.config(SAVED)) as world:
        start = world.digests()
        for early in (case.spec(1), case.spec(2)):
            assert world.step(early, observe(ONE).batch).skipped and world.digests() == start
        assert not world.step(case.spec(0), observe(ONE).batch).skipped
        moved = world.digests()
        assert world.step(case.spec(0), observe(ONE).batch).skipped and world.digests() == moved != start


def _go_on(world: World, observe: Observe) -> Next:
    scores = world.score(case.sequences())
    result = world.step(case.spec(1), observe(ONE).batch)
    return Next(scores, result, _state(world), world.digests())


def _state(world: World) -> dict[str, Tensor]:
    return whole(box for boxes in world.boxes() for box in boxes)


def _copy_slowly(context: calls.Context, slot: int) -> None:
    """The next save takes a while to copy the state of this rank."""
    copy = durable._copies

    def slowly(pieces: Sequence[Piece]) -> list[Piece]:
        durable._copies = copy
        time.sleep(0.5)
        return copy(pieces)

    durable._copies = slowly


def _shift(context: calls.Context, slot: int) -> None:
    """Have no part of the state be zero, so that one that is left out shows; alike in every replica."""
    for part in context["engine"].parts:
        part.piece.tensor.add_(len(part.piece.key))


def _needs(boxes: list[Box], item: Item) -> bool:
    """Whether a rank with these parts holds an element of what is stored as `item`."""
    return any(
        box.key == item.key
        and all(
            max(a, b) < min(a + n, b + m)
            for a, n, b, m in zip(box.offset, box.tensor.shape, item.offset, item.size, strict=True)
        )
        for box in boxes
    )


def _cut(tensor: Tensor, box: Box) -> Tensor:
    return tensor[tuple(slice(at, at + n) for at, n in zip(box.offset, box.tensor.shape, strict=True))]
