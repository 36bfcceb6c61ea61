"""Reading needs the memory of one tensor besides what it fills, however large the files are."""

import json
import multiprocessing
import re
from collections.abc import Iterator
from multiprocessing.pool import Pool
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ftppo.checkpoint.huggingface.names import Strip, shapes, stacks_layers, strips
from ftppo.checkpoint.huggingface.reader import read_weights
from ftppo.checkpoint.pieces import Piece
from ftppo.config import Model

SHAPE = Model(layers=8, hidden=512, ffn=1536, heads=8, kv_heads=4, vocab=6144)
SLACK = 4 * 2**20  # bytes: code that is run for the first time, ends of pages


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """Weights in four files, 62 MB in all."""
    folder = tmp_path_factory.mktemp("model")
    names = list(shapes(strips(SHAPE, 6144)).items())
    place = {name: f"part-{4 * number // len(names)}.safetensors" for number, (name, _) in enumerate(names)}
    for file in set(place.values()):
        parts = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in names if place[name] == file}
        save_file(parts, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    return SHAPE.model_copy(update={"path": str(folder)})


@pytest.fixture(scope="module")
def fresh() -> Iterator[Pool]:
    """A process that does nothing else."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        yield pool


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=["same", "converted"])
@pytest.mark.parametrize("cut", [None, 0, 1], ids=["whole", "rows", "columns"])
def test_memory_peaks_at_one_tensor_more(fresh: Pool, model: Model, cut: int | None, dtype: torch.dtype) -> None:
    extra, read, largest = fresh.apply(peak, (model, cut, dtype))
    assert read > 30e6 and largest < 7e6
    assert extra <= largest + SLACK


def peak(model: Model, cut: int | None, dtype: torch.dtype) -> tuple[int, int, int]:
    """(bytes resident at most beyond those before, bytes read, bytes of the largest tensor in the files)."""
    pieces = [piece(strip, model, cut, dtype) for strip in strips(model, 6144) if strip.start == 0]
    read_weights(pieces[:1], model)  # what is loaded at first use
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident
    before = resident("VmHWM")
    read = read_weights(pieces, model)
    largest = max(2 * torch.Size(shape).numel() for shape in shapes(strips(model, 6144)).values())
    return resident("VmHWM") - before, read, largest


def piece(strip: Strip, model: Model, cut: int | None, dtype: torch.dtype) -> Piece:
    """The tensor of which `strip` is the beginning, or the second half of its rows or columns, of one layer."""
    whole = [other for other in strips(model, 6144) if (other.key, other.layer) == (strip.key, strip.layer)]
    shape = (sum(other.rows for other in whole), *strip.columns)
    offset, size = [0] * len(shape), list(shape)
    if cut is not None and cut < len(shape):
        size[cut] //= 2
        offset[cut] = size[cut]
    if not stacks_layers(strip.key):
        return Piece(strip.key, shape, tuple(offset), torch.ones(size, dtype=dtype))
    assert strip.layer is not None
    return Piece(strip.key, (model.layers, *shape), (strip.layer, *offset), torch.ones((1, *size), dtype=dtype))


def resident(what: str) -> int:
    """Bytes, as the kernel counts them."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024
