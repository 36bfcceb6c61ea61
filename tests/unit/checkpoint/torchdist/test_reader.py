"""Weights of a model out of a torch_dist checkpoint: names, shapes, dtypes that are not quite ours."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftppo.checkpoint.huggingface.names import own_shapes
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.torchdist.reader import check_weights, read_weights
from ftppo.config import Config
from tests.refusal import remedy_of

from .conftest import SaveAs

VOCAB, PADDED = 20, 32
SHAPE = {"layers": 2, "hidden": 16, "ffn": 24, "heads": 4, "kv_heads": 2}


def configured(folder: Path | str) -> Config:
    return Config.model_validate({"model": SHAPE | {"weights": str(folder)}})


def weights(vocab: int = VOCAB) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    shapes = own_shapes(configured("").model, vocab)
    return {key: torch.randn(shape, generator=draw) for key, shape in shapes.items()}


def numbered(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same with a tensor for each layer."""
    found: dict[str, Tensor] = {}
    for key, tensor in state.items():
        rest = key.removeprefix("decoder.layers.")
        found |= {key: tensor} if rest == key else {f"decoder.layers.{at}.{rest}": row for at, row in enumerate(tensor)}
    return found


def read(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """What a model whose vocabulary is padded to PADDED gets; every element is NaN before."""
    shapes = own_shapes(configured("").model, PADDED)
    pieces = [
        Piece(key, shape, (0,) * len(shape), torch.full(shape, torch.nan, dtype=dtype)) for key, shape in shapes.items()
    ]
    assert read_weights(pieces, configured(folder), VOCAB) > 0
    return {piece.key: piece.tensor for piece in pieces}


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> bool:
    for key, tensor in wanted.items():
        rows = VOCAB if "layers" not in key and tensor.dim() == 2 else None
        if not torch.equal(found[key][:rows], tensor[:rows]) or (rows and found[key][rows:].any()):
            return False
    return found.keys() == wanted.keys()


@pytest.mark.parametrize("vocab", [VOCAB, PADDED, 128])
@pytest.mark.parametrize("layers", ["stacked", "numbered"])
def test_layers_may_be_stacked_or_numbered_and_the_vocabulary_padded(save_as: SaveAs, vocab: int, layers: str) -> None:
    state = weights(vocab)
    folder = save_as(numbered(state) if layers == "numbered" else state)
    check_weights(configured(folder), VOCAB)
    assert same(read(folder), state)


def test_weights_are_converted_to_what_the_model_has(save_as: SaveAs) -> None:
    state = {key: tensor.bfloat16() for key, tensor in weights().items()}
    folder = save_as(state)
    check_weights(configured(folder), VOCAB)
    assert same(read(folder), {key: tensor.float() for key, tensor in state.items()})
    assert same(read(folder, torch.bfloat16), state)


def test_what_is_stored_besides_is_left_alone(save_as: SaveAs) -> None:
    besides: dict[str, Any] = {"optimizer.state.exp_avg.decoder.final_layernorm.weight": torch.zeros(9), "rng": [1]}
    state = weights()
    folder = save_as(state | besides)
    check_weights(configured(folder), VOCAB)
    assert same(read(folder), state)


@pytest.mark.parametrize(
    ("key", "tensor", "remedy"),
    [
        ("decoder.layers.mlp.linear_fc2.weight", None, "decoder.layers.0.mlp.linear_fc2.weight: not in the checkpoint"),
        ("decoder.final_layernorm.weight", None, "which holds 8 tensors (decoder.layers"),
        ("decoder.final_layernorm.weight", torch.zeros(8), "has shape (8,), wanted (16,)"),
        ("decoder.layers.mlp.linear_fc2.weight", torch.zeros(3, 16, 24), "(3, 16, 24), wanted (2, 16, 24)"),
        ("embedding.word_embeddings.weight", torch.zeros(19, 16), "(19, 16), wanted (20, 16) or more rows"),
        ("output_layer.weight", torch.zeros(20, 8), "(20, 8), wanted (20, 16) or more rows"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_run(
    save_as: SaveAs, key: str, tensor: Tensor | None, remedy: str
) -> None:
    state = weights()
    del state[key]
    config = configured(save_as(state if tensor is None else state | {key: tensor}))
    assert remedy in remedy_of(lambda: check_weights(config, VOCAB), "model.weights")


def test_a_place_that_is_none_is_refused(tmp_path: Path) -> None:
    nowhere = configured(tmp_path / "nowhere")
    assert "name the folder with both" in remedy_of(lambda: check_weights(nowhere, VOCAB), "model.weights")
    strange = configured("ftp://host/x")
    assert "unknown scheme 'ftp'" in remedy_of(lambda: check_weights(strange, VOCAB), "model.weights")
