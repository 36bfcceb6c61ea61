"""A checkpoint cut anyhow becomes a folder of safetensors, bit for bit; what cannot be exported leaves nothing."""

import json
import random
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from ftppo.checkpoint.huggingface.names import shapes, stacks_layers, strips
from ftppo.checkpoint.huggingface.reader import check_weights, read_weights
from ftppo.checkpoint.pieces import Piece
from ftppo.config import Config, Model
from ftppo.export import main
from ftppo.storage.local import LocalStore
from tests.unit.checkpoint.conftest import Cut, Save

PLAIN = Model(family="qwen3", hidden=16, ffn=24, heads=4, kv_heads=2, vocab=10)


def ours(model: Model, dtype: torch.dtype) -> dict[str, Tensor]:
    """Random tensors under our names, the vocabulary padded to 16."""
    draw, found = torch.Generator().manual_seed(0), strips(model, 10)
    sizes: dict[str, int] = {}
    for strip in found:
        sizes[strip.key] = max(strip.start + strip.rows, sizes.get(strip.key, 0))
    tensors = {}
    for strip in found:
        layers = (model.layers,) if stacks_layers(strip.key) else ()
        rows = 16 if sizes[strip.key] == 10 else sizes[strip.key]
        tensors[strip.key] = torch.randn(*layers, rows, *strip.columns, generator=draw).to(dtype)
    return tensors


@pytest.fixture
def saved(tmp_path: Path, save: Save, cut: Cut) -> LocalStore:
    """Step 3 in bf16, written by two ranks."""
    store, draw = LocalStore(tmp_path / "run" / "checkpoints"), random.Random(0)
    shards: list[list[Piece]] = [[], []]
    for key, tensor in ours(PLAIN, torch.bfloat16).items():
        for piece in cut(key, tensor, draw):
            shards[draw.randrange(2)].append(piece)
    save(store, shards, 3, model=PLAIN.model_dump(mode="json"))
    return store


@pytest.mark.parametrize("shard_gib", ["4", "1e-6"])
def test_what_is_written_is_read_again_bit_for_bit(saved: LocalStore, tmp_path: Path, shard_gib: str) -> None:
    out = tmp_path / "out"
    assert main([saved.url, str(out), "--shard-gib", shard_gib]) == 0
    model = PLAIN.model_copy(update={"path": str(out)})
    check_weights(model)
    for key, tensor in ours(PLAIN, torch.bfloat16).items():
        piece = Piece(key, tuple(tensor.shape), tuple(0 for _ in tensor.shape), torch.empty_like(tensor))
        read_weights([piece], model)
        padding = 10 if key in ("embedding.word_embeddings.weight", "output_layer.weight") else len(tensor)
        assert torch.equal(piece.tensor[:padding], tensor[:padding]), key


def test_files_are_cut_by_size_and_named_in_an_index(saved: LocalStore, tmp_path: Path) -> None:
    limit, out = 2**30 // 10**6, tmp_path / "out"  # bytes
    assert main([saved.url, str(out), "--shard-gib", "1e-6"]) == 0
    index = json.loads((out / "model.safetensors.index.json").read_text())
    files = sorted(out.glob("*.safetensors"))
    assert sorted(set(index["weight_map"].values())) == [file.name for file in files]
    assert files[0].name == f"model-00001-of-{len(files):05}.safetensors"
    assert set(index["weight_map"]) == set(shapes(strips(PLAIN, 10)))
    for file in files:
        with safe_open(file, "pt") as opened:
            sizes = [opened.get_tensor(name).nbytes for name in opened.keys()]  # noqa: SIM118
        assert sum(sizes) <= limit or len(sizes) == 1
    assert index["metadata"]["total_size"] == 2 * sum(torch.Size(s).numel() for s in shapes(strips(PLAIN, 10)).values())


@pytest.mark.parametrize("place", ["run", "run/checkpoints/step-00000003", "file"])
def test_a_run_or_one_step_can_be_named(saved: LocalStore, tmp_path: Path, place: str) -> None:
    raw = {"model": PLAIN.model_dump(), "checkpoint": {"url": "/where/it/was/once"}}
    (tmp_path / "run" / "config.json").write_text(Config.model_validate(raw).model_dump_json())
    source = f"file://{saved.url}/step-00000003/attempt-000001-a" if place == "file" else str(tmp_path / place)
    assert main([source, str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "qwen3"


def test_tokenizer_files_are_copied_from_where_the_model_came(tmp_path: Path, save: Save) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "tokenizer.json").write_text("{}")
    (origin / "unrelated.txt").write_text("")
    for step, path in ((1, origin), (2, tmp_path / "gone")):
        model = PLAIN.model_copy(update={"path": str(path)}).model_dump(mode="json")
        pieces = [Piece(key, tuple(t.shape), (0,) * t.dim(), t) for key, t in ours(PLAIN, torch.float32).items()]
        save(LocalStore(tmp_path / "store"), [pieces], step, model=model)
    for step, copied in ((1, ["tokenizer.json"]), (2, [])):
        assert main([str(tmp_path / "store"), str(tmp_path / f"out{step}"), "--step", str(step)]) == 0
        names = sorted(file.name for file in (tmp_path / f"out{step}").iterdir())
        assert names == sorted(["config.json", "model.safetensors", *copied])


def test_what_cannot_be_exported_leaves_nothing(
    saved: LocalStore, tmp_path: Path, capsys: pytest.CaptureFixture[str], save: Save
) -> None:
    before = sorted(tmp_path.iterdir())
    (data,) = (saved.root / "step-00000003").glob("*/__0_0.distcp")
    assert main([str(tmp_path / "empty"), str(tmp_path / "out")]) == 1
    assert "no checkpoint there" in capsys.readouterr().err
    assert main([saved.url, str(tmp_path / "out"), "--step", "9"]) == 1
    assert "no checkpoint of step 9" in capsys.readouterr().err
    data.write_bytes(bytes(data.stat().st_size))
    assert main([saved.url, str(tmp_path / "out")]) == 1
    assert "are not what was written" in capsys.readouterr().err
    save(saved, [[Piece("w", (1,), (0,), torch.zeros(1))]], 4)
    assert main([saved.url, str(tmp_path / "out")]) == 1
    assert "does not say what model" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
    assert main([saved.url, str(tmp_path / "run")]) == 2
    assert "exists: name a new folder" in capsys.readouterr().err
