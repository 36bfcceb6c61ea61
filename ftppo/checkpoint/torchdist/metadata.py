"""Reads what others wrote about a torch_dist checkpoint. Comes in: a store with its folder as root; goes out: an Index.

`.metadata` is a pickle, and a pickle can name any function to be called. Here it can name what torch writes into it and
nothing else, so that a tampered one runs no code.
"""

import io
import json
import pickle
from pathlib import PurePosixPath
from typing import Any

from pydantic import ValidationError

from ftppo.checkpoint.index import Index, Item
from ftppo.errors import CheckpointError, NotFound
from ftppo.storage.base import ObjectStore, is_reserved

ABOUT, METADATA = "metadata.json", ".metadata"


class _Bare:
    """Stands for a class that is not needed: it takes the attributes that are pickled."""


_DCP = "torch.distributed.checkpoint"
_OWN = {  # module: the names that torch itself puts there
    f"{_DCP}.metadata": {
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta", "TensorProperties",
        "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    },
    f"{_DCP}.planner": {"BytesIOWriteData", "SavePlan", "TensorWriteData", "WriteItem", "WriteItemType"},
    f"{_DCP}.filesystem": {"_StorageInfo"},
    "torch": {
        "Size", "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16",
        "int8", "uint8", "bool",
    },
    "torch.serialization": {"_get_layout"},
}  # fmt: skip
_MEGATRON = "megatron.core.dist_checkpointing.strategies.torch"
_INSTEAD: dict[tuple[str, str], type] = {
    **{(module, "PosixPath"): PurePosixPath for module in ("pathlib", "pathlib._local")},  # where it was written to
    **{(_MEGATRON, name): _Bare for name in ("MCoreMetadata", "MCoreSavePlan")},  # of releases before 0.16
}


def read_index(store: ObjectStore) -> Index:
    """Where the tensors of the checkpoint lie. Nothing is known of their checksums.

    Raises CheckpointError where the folder holds no torch_dist checkpoint, or one that cannot be read.
    """
    try:
        about, data = json.loads(store.get(ABOUT)), store.get(METADATA)
    except NotFound as error:
        raise CheckpointError(f"holds no {ABOUT} with {METADATA}: name the folder with both ({error})") from error
    except ValueError as error:
        raise CheckpointError(f"its {ABOUT} cannot be read: {error}") from error
    backend = about.get("sharded_backend") if isinstance(about, dict) else None
    if backend != "torch_dist":
        raise CheckpointError(f"its {ABOUT} names the format {backend!r}; torch_dist alone can be read")
    return _index_of(_Unpickler(io.BytesIO(data)).load_checked())


class _Unpickler(pickle.Unpickler):
    """Knows what a `.metadata` is made of, and refuses to look any other name up."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _INSTEAD:
            return _INSTEAD[module, name]
        if name not in _OWN.get(module, ()):
            raise CheckpointError(f"its {METADATA} names {module}.{name}, which no checkpoint needs: do not trust it")
        return super().find_class(module, name)

    def load_checked(self) -> Any:
        """What is pickled. Raises CheckpointError."""
        try:
            return self.load()
        except CheckpointError:
            raise
        except Exception as error:  # garbled bytes make it raise anything
            raise CheckpointError(f"its {METADATA} cannot be read: {error!r}") from error


def _index_of(metadata: Any) -> Index:
    try:
        sizes = {
            (key, tuple(chunk.offsets)): (tuple(about.size), tuple(chunk.sizes), str(about.properties.dtype))
            for key, about in metadata.state_dict_metadata.items()
            for chunk in getattr(about, "chunks", ())  # what is no tensor has none, and is left out
        }
        items = [
            _item(place.fqn, tuple(place.offset), *sizes[place.fqn, tuple(place.offset)], info)
            for place, info in metadata.storage_data.items()
            if place.offset is not None
        ]
    except (AttributeError, KeyError, TypeError, ValueError, ValidationError) as error:
        raise CheckpointError(f"its {METADATA} describes no tensors as torch does: {error!r}") from error
    return Index(items=tuple(sorted(items, key=lambda item: (item.key, item.offset))))


def _item(
    key: str, offset: tuple[int, ...], shape: tuple[int, ...], size: tuple[int, ...], dtype: str, info: Any
) -> Item:
    if getattr(info, "transform_descriptors", None):
        raise CheckpointError(f"{key} is stored by way of {info.transform_descriptors}: save it plain")
    if any(not part or is_reserved(part) for part in info.relative_path.split("/")):
        raise CheckpointError(f"{key} is said to lie in {info.relative_path!r}, outside the folder")
    return Item(
        key=key,
        shape=shape,
        offset=offset,
        size=size,
        dtype=dtype.removeprefix("torch."),
        object=info.relative_path,
        start=info.offset,
        length=info.length,
        crc32="",
    )
