"""Makes an attempt's folder a torch_dist checkpoint. Comes in: an Index; goes out: the small files other tools expect.

`torch.distributed.checkpoint` reads `.metadata`; megatron-core reads `metadata.json` and `common.pt` as well
(megatron/core/dist_checkpointing, formats "torch_dist" version 1). They are written only: `.metadata` is a pickle, and
nothing here ever loads one.
"""

import io
import json
import pickle

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from ftppo.checkpoint.index import Index, Item
from ftppo.checkpoint.manifest import Header
from ftppo.errors import CorruptCheckpoint


def stock_files(index: Index, header: Header) -> dict[str, bytes]:
    """Name to content of the files besides the data. The driver's state is left out: it is of use to us alone."""
    about = header.model_dump(mode="json", exclude={"state"})
    common = io.BytesIO()
    torch.save({"iteration": header.iteration, "ftppo": about}, common)
    return {
        ".metadata": pickle.dumps(_metadata(index)),
        "metadata.json": json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}).encode(),
        "common.pt": common.getvalue(),
    }


def tensor_metadata(items: list[Item]) -> TensorStorageMetadata:
    """DCP's description of one tensor from all its items; chunk i is items[i]."""
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=torch_dtype(items[0])),
        size=torch.Size(items[0].shape),
        chunks=[ChunkStorageMetadata(torch.Size(item.offset), torch.Size(item.size)) for item in items],
    )


def torch_dtype(item: Item) -> torch.dtype:
    """The dtype that `item` names. Raises CorruptCheckpoint where torch has no such dtype."""
    dtype = getattr(torch, item.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CorruptCheckpoint(f"{item.key}: {item.dtype!r} is no dtype")
    return dtype


def _metadata(index: Index) -> Metadata:
    return Metadata(
        state_dict_metadata={key: tensor_metadata(items) for key, items in index.by_key.items()},
        planner_data={key: (key,) for key in index.by_key},  # keys are flat: each is its own path
        storage_data={
            MetadataIndex(item.key, item.offset): _StorageInfo(item.object, item.start, item.length)
            for item in index.items
        },
        storage_meta=StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
