"""Makes an attempt's folder a torch_dist checkpoint. Comes in: an Index; goes out: the small files other tools expect.

`torch.distributed.checkpoint` reads `.metadata`; megatron-core reads `metadata.json` and `common.pt` as well
(megatron/core/dist_checkpointing, formats "torch_dist" version 1), and asks for the extra state of each linear layer,
which is empty but for fp8. They are written only: `.metadata` is a pickle, and a checkpoint of ours is read without it.
"""

import io
import json
import pickle
import re

import torch
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
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

EXTRA = "__extra_0.distcp"  # the one extra state, for all layers
_LINEAR = re.compile(r"(decoder\.layers\..*\.)linear_\w+\.weight")


def stock_files(index: Index, header: Header) -> dict[str, bytes]:
    """Name to content of the files besides the data. The driver's state is left out: it is of use to us alone."""
    about = header.model_dump(mode="json", exclude={"state"})
    extra, names = _saved([None]), _extra_states(index)
    files = {
        ".metadata": pickle.dumps(_metadata(index, names, len(extra))),
        "metadata.json": json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}).encode(),
        "common.pt": _saved({"iteration": header.iteration, "ftppo": about}),
    }
    return files | {EXTRA: extra} if names else files


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


def _saved(content: object) -> bytes:
    stream = io.BytesIO()
    torch.save(content, stream)
    return stream.getvalue()


def _extra_states(index: Index) -> list[str]:
    """Names of the extra states of the policy's layers, whether Transformer Engine makes them or not."""
    layers: dict[str, int] = {}
    for key, items in index.by_key.items():
        if found := _LINEAR.fullmatch(key):
            layers[key.removesuffix(".weight")] = items[0].shape[0]
            if found[1].endswith("self_attention."):
                layers[f"{found[1]}core_attention"] = items[0].shape[0]
    return [f"{name}._extra_state/shard_{layer}_{num}" for name, num in layers.items() for layer in range(num)]


def _metadata(index: Index, extra: list[str], extra_bytes: int) -> Metadata:
    tensors = {key: tensor_metadata(items) for key, items in index.by_key.items()}
    places = {
        MetadataIndex(item.key, item.offset): _StorageInfo(item.object, item.start, item.length) for item in index.items
    }
    return Metadata(
        state_dict_metadata=tensors | {name: BytesStorageMetadata() for name in extra},
        planner_data={key: (key,) for key in (*index.by_key, *extra)},  # keys are flat: each is its own path
        storage_data=places | {MetadataIndex(name): _StorageInfo(EXTRA, 0, extra_bytes) for name in extra},
        storage_meta=StorageMeta(),
        version=CURRENT_DCP_VERSION,
    )
