"""Other tools read the folder as it is: torch DCP, and megatron-core's dist_checkpointing on one gloo rank."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, load
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from ftppo.checkpoint.manifest import Manifest
from ftppo.storage.local import LocalStore

from .conftest import Cut, Save


@pytest.fixture
def source() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        "decoder.weight": torch.randn(12, 6, generator=generator),
        "decoder.bias": torch.randn(12, generator=generator).bfloat16(),
        "optimizer.step": torch.tensor(7.0),
    }


@pytest.fixture
def folder(tmp_path: Path, source: dict[str, Tensor], cut: Cut, save: Save) -> Path:
    """A checkpoint of two writers in random boxes."""
    draw = random.Random(5)
    pieces = [piece for key, tensor in source.items() for piece in cut(key, tensor, draw)]
    assert len(pieces) > 5
    manifest: Manifest = save(LocalStore(tmp_path), [pieces[::2], pieces[1::2]])
    return tmp_path / manifest.prefix


def test_torch_loads_whole_tensors(folder: Path, source: dict[str, Tensor]) -> None:
    target = {key: torch.zeros_like(tensor) for key, tensor in source.items()}
    load(target, checkpoint_id=folder, no_dist=True)
    assert all(torch.equal(target[key], tensor) for key, tensor in source.items())


def test_torch_converts_it_to_one_file(folder: Path, source: dict[str, Tensor], tmp_path: Path) -> None:
    dcp_to_torch_save(folder, tmp_path / "one.pt")
    loaded = torch.load(tmp_path / "one.pt", weights_only=True)
    assert loaded.keys() == source.keys() and all(torch.equal(loaded[key], source[key]) for key in source)


def test_our_items_are_those_that_torch_would_read(folder: Path) -> None:
    metadata = FileSystemReader(folder).read_metadata()
    for info in metadata.storage_data.values():
        with open(folder / info.relative_path, "rb") as file:
            file.seek(info.offset)
            assert file.read(2) == b"PK"  # each item is a torch.save archive of its own


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_megatron_loads_shards_of_another_layout(folder: Path, source: dict[str, Tensor]) -> None:
    from megatron.core import dist_checkpointing

    def shard(key: str, tensor: Tensor, *cuts: tuple[int, int, int]) -> dist_checkpointing.ShardedTensor:
        return dist_checkpointing.ShardedTensor.from_rank_offsets(key, tensor, *cuts)

    wanted = {
        "w": shard("decoder.weight", torch.zeros(12, 2), (1, 1, 3)),  # the middle of three column cuts
        "b": shard("decoder.bias", torch.zeros(6, dtype=torch.bfloat16), (0, 1, 2)),
        "s": shard("optimizer.step", torch.zeros(())),
    }
    loaded = dist_checkpointing.load(wanted, str(folder), validate_access_integrity=False)
    assert torch.equal(loaded["w"], source["decoder.weight"][:, 2:4])
    assert torch.equal(loaded["b"], source["decoder.bias"][6:]) and loaded["s"] == source["optimizer.step"]
    assert loaded["iteration"] == 1 and loaded["ftppo"]["layout"] == {"dp": 2}
    assert dist_checkpointing.load_tensors_metadata(str(folder)).keys() == source.keys()
