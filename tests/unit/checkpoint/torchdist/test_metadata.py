"""What others wrote is read without running anything of it: names that no checkpoint needs are refused."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.filesystem import _StorageInfo

from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.shards import read_shards
from ftppo.checkpoint.torchdist.metadata import read_index
from ftppo.errors import CheckpointError, CorruptCheckpoint
from ftppo.storage.local import LocalStore

from .conftest import SaveAs

STATE: dict[str, Any] = {
    "w": torch.arange(12.0).view(4, 3),
    "b": torch.arange(5).bfloat16(),
    "count": torch.tensor(7),
    "state": {"text": "no tensor", "numbers": [1, 2]},
}


class _Calls:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def piece(key: str, tensor: Tensor) -> Piece:
    return Piece(key, tuple(tensor.shape), (0,) * tensor.dim(), torch.zeros_like(tensor))


def test_tensors_are_found_and_read(save_as: SaveAs) -> None:
    store = LocalStore(save_as(STATE))
    index = read_index(store)
    tensors = {key: value for key, value in STATE.items() if isinstance(value, Tensor)}
    assert index.by_key.keys() == tensors.keys()
    pieces = [piece(key, tensor) for key, tensor in tensors.items()]
    read_shards(pieces, index, store, "")
    assert all(torch.equal(found.tensor, tensors[found.key]) for found in pieces)


def test_bytes_that_are_gone_are_named(save_as: SaveAs) -> None:
    folder = save_as(STATE)
    index = read_index(LocalStore(folder))
    data = folder / index.items[0].object
    data.write_bytes(data.read_bytes()[:100])
    with pytest.raises(CorruptCheckpoint, match=f"{data.name}: bytes"):
        read_shards([piece("w", STATE["w"])], index, LocalStore(folder), "")
    data.unlink()
    with pytest.raises(CorruptCheckpoint, match=f"{data.name}: the object is missing"):
        read_shards([piece("w", STATE["w"])], index, LocalStore(folder), "")


@pytest.mark.parametrize("place", ["alone", "inside"])
@pytest.mark.parametrize(
    "function", [os.mkdir, Path.mkdir, eval, getattr, torch.load], ids=["mkdir", "method", "eval", "getattr", "load"]
)
def test_a_tampered_pickle_runs_no_code(
    save_as: SaveAs, tmp_path: Path, function: Callable[..., object], place: str
) -> None:
    folder, trace = save_as(STATE), tmp_path / "trace"
    argument = f"__import__('os').mkdir({str(trace)!r})" if function is eval else str(trace)
    call: object = _Calls(function, argument)
    if place == "inside":
        metadata = FileSystemReader(folder).read_metadata()
        metadata.planner_data = call
        call = metadata
    (folder / ".metadata").write_bytes(pickle.dumps(call))
    with pytest.raises(CheckpointError, match="which no checkpoint needs: do not trust it"):
        read_index(LocalStore(folder))
    assert not trace.exists()


def test_no_way_leads_on_from_a_name_that_is_allowed(save_as: SaveAs) -> None:
    folder = save_as(STATE)
    names = (b"torch", b"Size.__init__.__globals__")  # STACK_GLOBAL follows dots
    pushed = b"".join(b"\x8c" + bytes([len(name)]) + name for name in names)
    (folder / ".metadata").write_bytes(b"\x80\x04" + pushed + b"\x93.")
    with pytest.raises(CheckpointError, match=r"torch\.Size\.__init__\.__globals__"):
        read_index(LocalStore(folder))


@pytest.mark.parametrize("place", ["../iter_0000100/__0_0.distcp", "/etc/passwd", ""])
def test_no_place_leads_out_of_the_folder(save_as: SaveAs, place: str) -> None:
    folder = save_as(STATE)
    metadata = FileSystemReader(folder).read_metadata()
    metadata.storage_data = {key: _StorageInfo(place, 0, 10) for key in metadata.storage_data}
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError, match="outside the folder"):
        read_index(LocalStore(folder))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("metadata.json", None, "holds no metadata.json with .metadata"),
        (".metadata", None, "holds no metadata.json with .metadata"),
        ("metadata.json", b"{", "its metadata.json cannot be read"),
        ("metadata.json", b"[]", "names the format None"),
        ("metadata.json", b'{"sharded_backend": "zarr"}', "names the format 'zarr'; torch_dist alone"),
        (".metadata", b"\x80\x04garbage", "its .metadata cannot be read"),
        (".metadata", pickle.dumps({"a": 1}), "describes no tensors as torch does"),
    ],
)
def test_what_is_no_checkpoint_is_refused(save_as: SaveAs, name: str, content: bytes | None, message: str) -> None:
    folder = save_as(STATE)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        read_index(LocalStore(folder))
