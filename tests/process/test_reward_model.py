"""Classifiers of transformers as reward models: the same scores in any layout, and no part of the state."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from ftppo.config import Reward, load_config
from ftppo.driver.launch import check_models
from tests.byte_tokenizer import save_tokenizer
from tests.process import case, pretrained
from tests.process.case import LAYOUTS, ONE, difference
from tests.process.mesh import Mesh
from tests.process.pretrained import FAMILIES
from tests.process.world import World
from tests.refusal import remedy_of

TOLERANCE = 1e-4
CASES = [(family, name) for family in FAMILIES for name in ("one", "tp2", "pp2")]
CASES += [("llama", "cp2"), ("llama", "dp2tp2pp2")]


@dataclass(frozen=True)
class Origin:
    """The folder of a classifier, and what transformers makes of the given sequences with it: [n]."""

    folder: Path
    scores: Tensor


@pytest.fixture(scope="module")
def origins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Origin]:
    return {family: made(family, tmp_path_factory.mktemp(family)) for family in FAMILIES}


def made(family: str, folder: Path, **shape: int) -> Origin:
    model = pretrained.make_classifier(family, folder, **shape)
    with torch.no_grad():
        return Origin(folder, model(case.sequences().tokens).logits.squeeze(-1))


@pytest.mark.parametrize(("family", "name"), CASES)
def test_a_classifier_says_what_it_says_in_transformers(
    mesh: Mesh, origins: dict[str, Origin], family: str, name: str
) -> None:
    origin, layout = origins[family], LAYOUTS.get(name, ONE)
    with World(mesh, case.config(layout, reward=Reward(path=str(origin.folder)))) as world:
        found = world.reward(case.sequences()).values
    assert found.dtype == torch.float32 and found.unique().numel() == case.NUM
    assert difference(found, origin.scores) < TOLERANCE


def test_micro_batches_by_length_change_nothing(mesh: Mesh, origins: dict[str, Origin]) -> None:
    origin = origins["qwen2"]
    config = case.config(LAYOUTS["pp2"], reward=Reward(path=str(origin.folder)))
    config = config.model_copy(update={"train": config.train.model_copy(update={"micro_tokens": 2 * case.SEQ})})
    with World(mesh, config) as world:
        assert difference(world.reward(case.sequences()).values, origin.scores) < TOLERANCE


def test_it_moves_with_nothing_and_is_no_part_of_the_state(mesh: Mesh, tmp_path: Path) -> None:
    """It is as large as the policy: whatever goes over all models would fit it too."""
    model = case.config(ONE).model
    shape = {"hidden_size": model.hidden, "intermediate_size": model.ffn, "num_hidden_layers": model.layers}
    heads = {"num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads, "head_dim": 16}
    origin = made("llama", tmp_path, **shape, **heads, vocab_size=64)
    with World(mesh, case.config(ONE)) as world:
        keys, digests = {box.key for boxes in world.boxes() for box in boxes}, world.digests()
    with World(mesh, case.config(ONE, reward=Reward(path=str(origin.folder)))) as world:
        assert {box.key for boxes in world.boxes() for box in boxes} == keys
        assert world.digests() == digests
        world.each("begin_ppo", 0)
        world.step(case.spec(), case.batch(world.score(case.sequences()), world.config.algo))
        moved = world.reward(case.sequences()).values
        world.each("reset")
        fresh = world.reward(case.sequences()).values
    assert torch.equal(moved, fresh) and difference(moved, origin.scores) < TOLERANCE


def test_a_folder_is_looked_into_before_anything_starts(tmp_path: Path) -> None:
    policy, classifier = tmp_path / "policy", tmp_path / "classifier"
    pretrained.make("llama", policy, vocab_size=260)
    pretrained.make_classifier("qwen3", classifier, vocab_size=260)
    for folder in (policy, classifier):
        save_tokenizer(folder)
    sections = {"model": {"path": str(policy)}, "reward": {"path": str(classifier)}}
    config = load_config(sections | {"rollout": {"max_prompt": 16, "max_response": 16}})
    check_models(config, 260)
    (classifier / "tokenizer.json").unlink()
    assert "has no tokenizer.json" in remedy_of(lambda: check_models(config, 260), "reward.path")
    for file in classifier.glob("model*"):
        file.unlink()
    assert "has no model.safetensors" in remedy_of(lambda: check_models(config, 260), "reward.path")
