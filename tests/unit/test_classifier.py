"""Reward models in the configuration: what a classifier's config.json gives, and what cannot judge this policy."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ftppo.checkpoint.stores import config_digest
from ftppo.classifier import classifier_of
from ftppo.config import Config, load_config
from tests.refusal import remedy_of
from tests.unit.test_pretrained import GIVEN, SEQUENCE

CLASSIFIER = GIVEN | {
    "architectures": ["LlamaForSequenceClassification"], "id2label": {"0": "LABEL_0"}, "num_hidden_layers": 4,
}  # fmt: skip

type Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """load(changes, **sections): the configuration with a policy and a classifier whose config.json has `changes`."""

    def loaded(changes: dict[str, Any] | None = None, **sections: Any) -> Config:
        for name, content in (("policy", GIVEN), ("classifier", CLASSIFIER | (changes or {}))):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / "config.json").write_text(json.dumps(content))
        given = {"model": {"path": str(tmp_path / "policy")}, "reward": {"path": str(tmp_path / "classifier")}}
        return load_config(given | SEQUENCE | sections)

    return loaded


def test_a_classifier_has_a_shape_of_its_own(load: Load) -> None:
    config = load({"hidden_size": 96, "tie_word_embeddings": True, "vocab_size": 71})
    assert config.reward.path is not None
    found = classifier_of(config.reward.path)
    assert (found.layers, found.hidden, found.vocab, found.path) == (4, 96, 71, config.reward.path)
    assert not found.tie_embeddings, "it has no output that could be tied"
    assert (config.model.layers, config.model.hidden) == (2, 64)


def test_a_relative_folder_means_the_same_in_every_process(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(reward={"path": "classifier"}).reward.path == str(tmp_path / "classifier")


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "is a LlamaForCausalLM: name a sequence classifier"),
        ({"architectures": None}, "name a sequence classifier"),
        ({"id2label": None}, "tells 2 labels apart"),
        ({"id2label": {"0": "A", "1": "B", "2": "C"}}, "tells 3 labels apart"),
        ({"model_type": "gpt2"}, "llama, mistral, qwen2, qwen3"),
        ({"vocab_size": 69}, "has 69 tokens, the policy 70"),
    ],
)
def test_what_cannot_judge_is_refused(load: Load, changes: dict[str, Any], remedy: str) -> None:
    assert remedy in remedy_of(lambda: load(changes), "reward.path")


def test_a_folder_that_is_not_there_is_refused_by_its_own_name(load: Load) -> None:
    assert "no such folder" in remedy_of(lambda: load(reward={"path": "/no/such/folder"}), "reward.path")


@pytest.mark.parametrize(
    ("changes", "parallel", "remedy"),
    [
        ({"num_key_value_heads": 2}, {"tp": 4}, "kv_heads=2, which must split over parallel.tp=4"),
        ({"num_hidden_layers": 3}, {"pp": 2}, "layers=3, which must be a multiple of 2"),
    ],
)
def test_one_that_does_not_split_is_refused(
    load: Load, changes: dict[str, Any], parallel: dict[str, int], remedy: str
) -> None:
    assert remedy in remedy_of(lambda: load(changes, parallel=parallel), "reward.path")


def test_sequences_longer_than_it_takes_are_refused(load: Load) -> None:
    remedy = remedy_of(lambda: load({"max_position_embeddings": 31}), "rollout.max_response")
    assert "the model of reward.path takes up to 31" in remedy


def test_it_needs_the_tokens_of_a_pretrained_policy(load: Load) -> None:
    assert "give model.path" in remedy_of(lambda: load(model={}), "reward.path")


@pytest.mark.parametrize(("key", "value"), [("coef", 2.0), ("task_coef", 0.0)])
def test_weights_of_no_model_are_refused(key: str, value: float) -> None:
    assert "give reward.path" in remedy_of(lambda: load_config({"reward": {key: value}}), f"reward.{key}")


def test_a_task_that_is_not_asked_needs_no_answers_and_no_function(load: Load, tmp_path: Path) -> None:
    alone = {"path": str(tmp_path / "classifier"), "task_coef": 0}
    prompts = tmp_path / "prompts.jsonl"
    prompts.touch()
    task = {"kind": "jsonl", "path": str(prompts), "answer_column": None}
    assert load(task=task, reward=alone).task.answer_column is None
    assert "reward.task_coef=0" in remedy_of(lambda: load(task=task), "task.answer_column")
    judged = task | {"reward": "module.function"}
    assert "is not asked" in remedy_of(lambda: load(task=judged, reward=alone), "task.reward")


def test_a_checkpoint_hangs_on_how_much_it_counts_and_not_on_where_it_lies(load: Load, tmp_path: Path) -> None:
    one, path = load(), tmp_path / "classifier"
    digest = config_digest(one)
    assert config_digest(one.model_copy(update={"reward": one.reward.model_copy(update={"path": "/moved"})})) == digest
    assert config_digest(load(reward={"path": str(path), "coef": 2.0})) != digest
    assert config_digest(load(reward={})) != digest
