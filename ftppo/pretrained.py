"""Hugging Face's config.json and the Model section. Comes in: a folder or a name on the hub, or a Model; goes
out: the other.

Both ways of transformers are read: `rope_theta` with `rope_scaling` (up to version 4), and `rope_parameters` (from 5).
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from ftppo.config_model import Model
from ftppo.errors import ConfigError

KEY = "model.path"
CONFIG = "config.json"
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
TOKENIZER = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "generation_config.json",
    "chat_template.jinja", "vocab.json", "merges.txt", "tokenizer.model",
)  # fmt: skip

_FAMILIES: tuple[str, ...] = get_args(Model.model_fields["family"].annotation)
_ONLY = {  # what a model may do otherwise, and we do not
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "partial_rotary_factor": 1.0,
    "quantization_config": None,
}  # fmt: skip


def locate(path: str, files: Sequence[str]) -> Path:
    """The folder of the model `path`; `files` (patterns) of one on the hub are fetched first. Raises ConfigError."""
    folder = Path(path)
    if folder.is_dir():
        return folder
    if not re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", path):
        raise ConfigError(KEY, path, f"no such folder (looked in {Path.cwd()})")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        remedy = "no such folder here; to fetch it from the Hugging Face hub, pip install huggingface_hub"
        raise ConfigError(KEY, path, remedy) from error
    try:
        return Path(snapshot_download(path, allow_patterns=list(files)))
    except Exception as error:  # of the hub, its HTTP client and the system: they have no root of their own
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = f"no such folder here, and the Hugging Face hub does not give it ({reason}): name a folder"
        raise ConfigError(KEY, path, remedy) from error


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """A JSON object of the folder; empty where there is no such file. Raises ConfigError."""
    try:
        found = json.loads((folder / name).read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ConfigError(KEY, str(folder), f"{name} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(KEY, str(folder), f"{name} holds no object")
    return found


def with_shape(model: Model) -> Model:
    """`model` in the shape that the config.json of `model.path` gives; weights, init_std and dtype stay.

    Raises ConfigError.
    """
    assert model.path is not None
    folder = locate(model.path, [CONFIG])
    path = str(folder.resolve()) if Path(model.path).is_dir() else model.path
    given = read_json(folder, CONFIG)
    if not given:
        raise ConfigError(KEY, model.path, f"has no {CONFIG}: name the folder that holds it")
    kept = {"path": path, "weights": model.weights, "init_std": model.init_std, "dtype": model.dtype}
    try:
        return Model.model_validate(kept | shape(given, model.path))
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(KEY, model.path, f"{CONFIG} gives {first['loc']}={first['input']}: {first['msg']}") from error


def shape(given: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Keys of the Model section from a config.json. Raises ConfigError for what the model here cannot do."""
    family = given.get("model_type")
    if family not in _FAMILIES:
        raise ConfigError(KEY, path, f"is of the family {family!r}; there are {', '.join(_FAMILIES)}")
    for key, only in _ONLY.items():
        if given.get(key, only) != only:
            raise ConfigError(KEY, path, f"{CONFIG} asks for {key}={given[key]!r}; {only!r} alone is possible")
    names = {
        "layers": "num_hidden_layers", "hidden": "hidden_size", "ffn": "intermediate_size",
        "heads": "num_attention_heads", "vocab": "vocab_size",
    }  # fmt: skip
    missing = [name for name in names.values() if name not in given]
    if missing:
        raise ConfigError(KEY, path, f"{CONFIG} lacks {', '.join(missing)}")
    base, scaling = _rope(given, path)
    return {key: given[name] for key, name in names.items()} | {
        "family": family,
        "kv_heads": given.get("num_key_value_heads") or given["num_attention_heads"],
        "head_dim": given.get("head_dim") or (128 if family == "qwen3" else None),
        "rope_base": base,
        "rope_scaling": scaling,
        "norm_eps": given.get("rms_norm_eps", 1e-6),
        "tie_embeddings": given.get("tie_word_embeddings", False),
        "max_length": given.get("max_position_embeddings"),
        "window": _window(given),
    }


def to_config_json(model: Model, vocab: int, dtype: str) -> dict[str, Any]:
    """The config.json of a `model` with `vocab` tokens whose weights are `dtype` (torch's name), as version 4 reads it.

    Where `model.path` still holds the model that it began as, all that its config.json says besides is kept.
    """
    written: dict[str, Any] = {
        "architectures": [f"{model.family.capitalize()}ForCausalLM"],
        "model_type": model.family,
        "hidden_act": "silu",
        "num_hidden_layers": model.layers,
        "hidden_size": model.hidden,
        "intermediate_size": model.ffn,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_size,
        "rope_theta": model.rope_base,
        "rope_scaling": _scaling_json(model),
        "rms_norm_eps": model.norm_eps,
        "tie_word_embeddings": model.tie_embeddings,
        "vocab_size": vocab,
        "torch_dtype": dtype,
    }
    if model.max_length is not None:
        written["max_position_embeddings"] = model.max_length
    if model.family == "mistral" or model.window is not None:
        written |= {"sliding_window": model.window, "use_sliding_window": model.window is not None}
    origin = _origin(model)
    return origin | {"dtype" if "dtype" in origin else "torch_dtype": dtype} if origin else written


def _origin(model: Model) -> dict[str, Any]:
    """The config.json that `model` was read from; empty where there is none, or another model's."""
    if model.path is None:
        return {}
    try:
        given = read_json(locate(model.path, [CONFIG]), CONFIG)
        same = Model.model_validate(shape(given, model.path)) if given else None
    except (ConfigError, ValidationError):
        return {}
    kept = {"path", "weights", "init_std", "dtype"}
    return given if same and same.model_dump(exclude=kept) == model.model_dump(exclude=kept) else {}


def _rope(given: Mapping[str, Any], path: str) -> tuple[float, dict[str, Any] | None]:
    """(base, scaling) of rotary position embeddings."""
    rope = {**(given.get("rope_scaling") or {}), **(given.get("rope_parameters") or {})}
    base = rope.get("rope_theta", given.get("rope_theta", 10000.0))
    kind = rope.get("rope_type", rope.get("type", "default"))
    match kind:
        case "default":
            return base, None
        case "linear":
            return base, {"kind": kind, "factor": rope.get("factor")}
        case "llama3":
            names = ("factor", "low_freq_factor", "high_freq_factor")
            length = rope.get("original_max_position_embeddings", given.get("max_position_embeddings"))
            return base, {"kind": kind, "original_length": length} | {name: rope.get(name) for name in names}
    raise ConfigError(KEY, path, f"{CONFIG} asks for rope_type={kind!r}; there are default, linear and llama3")


def _scaling_json(model: Model) -> dict[str, Any] | None:
    scaling = model.rope_scaling
    if scaling is None:
        return None
    found: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        found |= {
            "low_freq_factor": scaling.low_freq_factor,
            "high_freq_factor": scaling.high_freq_factor,
            "original_max_position_embeddings": scaling.original_length,
        }
    return found


def _window(given: Mapping[str, Any]) -> int | None:
    """The sliding window of any layer; transformers gives one to mistral unless told otherwise, to qwen if told so."""
    slides = given["model_type"] == "mistral" or given.get("use_sliding_window", False)
    return given.get("sliding_window", 4096) if slides else None
