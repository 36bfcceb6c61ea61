"""Folders of safetensors: every box of every tensor is found, and what does not fit is refused by name."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from ftppo.checkpoint.huggingface.names import EMBEDDING, OUTPUT, SCORE, Strip, shapes, stacks_layers, strips
from ftppo.checkpoint.huggingface.reader import check_weights, read_weights
from ftppo.checkpoint.pieces import Piece
from ftppo.config import Model
from tests.refusal import remedy_of

SHAPE = Model(family="qwen2", hidden=16, ffn=24, heads=4, kv_heads=2, vocab=10)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    save(weights(SHAPE), tmp_path)
    return SHAPE.model_copy(update={"path": str(tmp_path)})


def weights(model: Model) -> dict[str, Tensor]:
    """Every element of every tensor another number."""
    found, start = {}, 0
    for name, shape in shapes(strips(model, 10)).items():
        size = torch.Size(shape).numel()
        found[name] = torch.arange(start, start + size, dtype=torch.float32).view(shape)
        start += size
    return found


def save(tensors: dict[str, Tensor], folder: Path) -> None:
    save_file(tensors, folder / "model.safetensors")


def whole(model: Model) -> dict[str, Tensor]:
    """Our tensors, put together by the table of names."""
    given, ours = weights(model), dict[str, Tensor]()
    for strip in strips(model, 10):
        rows = given[strip.name][strip.at : strip.at + strip.rows]
        target = ours.setdefault(strip.key, torch.full(_our_shape(strip, model), -1.0))
        target = target if strip.layer is None else target[strip.layer]
        target[strip.start : strip.start + strip.rows] = rows
    return ours


def _our_shape(strip: Strip, model: Model) -> tuple[int, ...]:
    same = [other for other in strips(model, 10) if (other.key, other.layer) == (strip.key, strip.layer)]
    rows = max(other.start + other.rows for other in same)
    return (*((model.layers,) if stacks_layers(strip.key) else ()), rows, *strip.columns)


def test_the_names_cover_every_row_of_both_sides_once() -> None:
    seen: dict[tuple[str, int | None], list[int]] = {}
    there: dict[str, list[int]] = {}
    for strip in strips(SHAPE, 10):
        seen.setdefault((strip.key, strip.layer), []).extend(range(strip.start, strip.start + strip.rows))
        there.setdefault(strip.name, []).extend(range(strip.at, strip.at + strip.rows))
    for rows in (*seen.values(), *there.values()):
        assert sorted(rows) == list(range(len(rows)))


def test_any_box_of_any_tensor_is_read(model: Model) -> None:
    draw = torch.Generator().manual_seed(0)
    for key, tensor in whole(model).items():
        for _ in range(5):
            begin = [int(torch.randint(size, (), generator=draw)) for size in tensor.shape]
            end = [
                int(torch.randint(at, size, (), generator=draw)) + 1
                for at, size in zip(begin, tensor.shape, strict=True)
            ]
            box = tensor[tuple(slice(at, to) for at, to in zip(begin, end, strict=True))]
            piece = Piece(key, tuple(tensor.shape), tuple(begin), torch.empty_like(box))
            assert read_weights([piece], model) == box.nbytes
            assert torch.equal(piece.tensor, box), key


def test_weights_take_the_dtype_of_the_piece_and_padding_is_zero(model: Model) -> None:
    piece = Piece(EMBEDDING, (16, 16), (8, 0), torch.full((8, 16), 7.0, dtype=torch.bfloat16))
    assert read_weights([piece], model) == 2 * 16 * 4
    assert torch.equal(piece.tensor[:2], weights(model)["model.embed_tokens.weight"][8:].bfloat16())
    assert not piece.tensor[2:].any()


def test_several_files_are_read_by_their_index(model: Model, tmp_path: Path) -> None:
    tensors = weights(model)
    (tmp_path / "model.safetensors").unlink()
    names = sorted(tensors)
    place = {name: f"part-{number % 2}.safetensors" for number, name in enumerate(names)}
    for file in set(place.values()):
        save_file({name: tensors[name] for name in names if place[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    check_weights(model)
    (tmp_path / "part-1.safetensors").unlink()
    assert "has no part-1.safetensors" in refused(model)


@pytest.mark.parametrize(
    ("name", "tensor", "remedy"),
    [
        ("model.norm.weight", None, "lacks model.norm.weight"),
        ("model.norm.weight", torch.zeros(8), "of shape (8,), not (16,)"),
        ("model.norm.weight", torch.zeros(16, dtype=torch.int8), "as I8"),
        ("model.layers.0.self_attn.o_proj.bias", torch.zeros(16), "model.layers.0.self_attn.o_proj.bias"),
    ],
    ids=["missing", "shape", "dtype", "extra"],
)
def test_what_does_not_fit_is_refused(
    model: Model, tmp_path: Path, name: str, tensor: Tensor | None, remedy: str
) -> None:
    tensors = weights(model) | ({} if tensor is None else {name: tensor})
    if tensor is None:
        del tensors[name]
    save(tensors, tmp_path)
    assert remedy in refused(model)


def test_what_is_computed_or_tied_may_be_stored_besides(model: Model, tmp_path: Path) -> None:
    tied = model.model_copy(update={"tie_embeddings": True})
    save(weights(model) | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(2)}, tmp_path)
    check_weights(model)
    check_weights(tied)


def test_a_classifier_has_one_row_where_a_language_model_has_its_output(model: Model, tmp_path: Path) -> None:
    assert f"lacks {SCORE}" in remedy_of(lambda: check_weights(model, classifies=True), "model.path")
    tensors = weights(model)
    del tensors["lm_head.weight"]
    score = torch.arange(16, dtype=torch.float32).view(1, 16)
    save(tensors | {SCORE: score}, tmp_path)
    check_weights(model, classifies=True)
    piece = Piece(OUTPUT, (1, 16), (0, 4), torch.zeros(1, 12))
    assert read_weights([piece], model, classifies=True) == 12 * 4
    assert torch.equal(piece.tensor, score[:, 4:])
    save(tensors | {SCORE: score.expand(2, 16).contiguous()}, tmp_path)
    assert "(2, 16), not (1, 16)" in remedy_of(lambda: check_weights(model, classifies=True), "model.path")


def test_a_file_cut_short_is_refused(model: Model, tmp_path: Path) -> None:
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-8])
    assert "cannot be read" in refused(model)
    (tmp_path / "model.safetensors").unlink()
    assert "from safetensors alone" in refused(model)


def refused(model: Model) -> str:
    return remedy_of(lambda: check_weights(model), "model.path")
