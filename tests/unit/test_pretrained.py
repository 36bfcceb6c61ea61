"""config.json in and out: both ways of transformers, what is refused, and names on the hub."""

import json
import sys
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from ftppo.config import Model, load_config
from ftppo.config_model import RopeScaling
from ftppo.errors import ConfigError
from ftppo.pretrained import locate, shape, to_config_json, with_shape

GIVEN: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 70, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 2.0,
    "original_max_position_embeddings": 128,
}  # fmt: skip
SEQUENCE = {"rollout": {"max_prompt": 16, "max_response": 16}}


def folder(tmp_path: Path, **changes: Any) -> str:
    (tmp_path / "config.json").write_text(json.dumps(GIVEN | changes))
    return str(tmp_path)


def read(**changes: Any) -> Model:
    return Model.model_validate(shape(GIVEN | changes, "folder"))


def refused(path: str, **sections: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config({"model": {"path": path}} | SEQUENCE | sections)
    return caught.value


def test_the_folder_gives_the_shape_and_the_config_the_rest(tmp_path: Path) -> None:
    raw = {"model": {"path": folder(tmp_path, tie_word_embeddings=True), "layers": 7, "dtype": "bf16"}} | SEQUENCE
    model = load_config(raw).model
    assert (model.layers, model.hidden, model.ffn, model.heads, model.kv_heads) == (2, 64, 96, 8, 4)
    assert (model.vocab, model.norm_eps, model.tie_embeddings, model.max_length) == (70, 1e-6, True, 256)
    assert (model.path, model.dtype, model.family, model.head_size) == (str(tmp_path), "bf16", "llama", 8)


def test_a_relative_folder_means_the_same_in_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    folder(tmp_path / "model")
    assert with_shape(Model(path="model")).path == str(tmp_path / "model")


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5000.0, "rope_scaling": LLAMA3},
        {"rope_parameters": LLAMA3 | {"rope_theta": 5000.0}},
        {"rope_theta": 5000.0, "rope_scaling": {"type" if key == "rope_type" else key: LLAMA3[key] for key in LLAMA3}},
    ],
    ids=["version 4", "version 5", "early"],
)
def test_rotary_scaling_is_read_however_it_is_written(changes: dict[str, Any]) -> None:
    model = read(**changes)
    scaling = RopeScaling(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=2.0, original_length=128)
    assert (model.rope_base, model.rope_scaling) == (5000.0, scaling)


def test_defaults_of_the_families() -> None:
    assert read(num_key_value_heads=None).kv_heads == 8
    assert read(model_type="qwen3").head_size == 128
    assert read(model_type="mistral").window == 4096
    assert read(model_type="mistral", sliding_window=None).window is None
    assert read(model_type="qwen2", sliding_window=16).window is None
    assert read(model_type="qwen2", sliding_window=16, use_sliding_window=True).window == 16


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"model_type": "gpt2"}, "llama, mistral, qwen2, qwen3"),
        ({"hidden_act": "gelu"}, "'silu' alone"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "default, linear and llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "factor"),
        ({"hidden_size": "many"}, "hidden"),
    ],
)
def test_what_the_model_here_cannot_do_is_refused(tmp_path: Path, changes: dict[str, Any], remedy: str) -> None:
    error = refused(folder(tmp_path, **changes))
    assert error.key == "model.path" and remedy in error.remedy


def test_a_config_that_lacks_sizes_or_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert "lacks num_hidden_layers, hidden_size" in refused(str(tmp_path)).remedy
    (tmp_path / "config.json").write_text("{")
    assert "cannot be read" in refused(str(tmp_path)).remedy
    (tmp_path / "config.json").unlink()
    assert "has no config.json" in refused(str(tmp_path)).remedy


@pytest.mark.parametrize(("heads", "kv_heads", "key"), [(6, 6, "model.heads"), (8, 2, "model.kv_heads")])
def test_heads_that_do_not_split_are_refused(tmp_path: Path, heads: int, kv_heads: int, key: str) -> None:
    path = folder(tmp_path, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=96)
    error = refused(path, parallel={"tp": 4})
    assert error.key == key and "must split over parallel.tp=4" in error.remedy and "[1, 2" in error.remedy


@pytest.mark.parametrize("changes", [{"model_type": "mistral", "sliding_window": 31}, {"max_position_embeddings": 31}])
def test_sequences_longer_than_the_model_takes_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    error = refused(folder(tmp_path, **changes))
    assert error.key == "rollout.max_response" and "32 tokens" in error.remedy and "31" in error.remedy
    folder(tmp_path, **{key: 32 if value == 31 else value for key, value in changes.items()})
    load_config({"model": {"path": str(tmp_path)}} | SEQUENCE)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_what_is_written_reads_the_same(family: str) -> None:
    window = 64 if family in ("mistral", "qwen2") else None
    model = read(model_type=family, head_dim=32, rope_scaling=LLAMA3, tie_word_embeddings=True)
    model = model.model_copy(update={"window": window})
    written = to_config_json(model, 70, "bfloat16")
    assert Model.model_validate(shape(written, "folder")) == model
    assert written["torch_dtype"] == "bfloat16"


def test_a_config_keeps_what_it_said_besides_while_it_is_the_same_model(tmp_path: Path) -> None:
    model = with_shape(Model(path=folder(tmp_path, eos_token_id=2)))
    assert to_config_json(model, 70, "float32") == GIVEN | {"eos_token_id": 2, "torch_dtype": "float32"}
    folder(tmp_path, eos_token_id=2, hidden_size=128)
    assert to_config_json(model, 70, "float32")["hidden_size"] == 64


def test_a_name_on_the_hub_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(name: str, allow_patterns: list[str]) -> str:
        asked.append((name, allow_patterns))
        return folder(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    assert load_config({"model": {"path": "owner/name"}} | SEQUENCE).model.path == "owner/name"
    assert asked == [("owner/name", ["config.json"])]


def test_a_name_that_cannot_be_fetched_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    assert "(no route): name a folder" in refused("owner/name").remedy
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install huggingface_hub" in refused("owner/name").remedy


@pytest.mark.parametrize("path", ["/no/such/folder", "./model", "../model", "a/b/c"])
def test_what_can_be_a_folder_only_is_not_looked_up(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "snapshot_download", None)
    with pytest.raises(ConfigError, match="no such folder"):
        locate(path, [])
