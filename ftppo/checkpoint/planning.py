"""What to write and what to read, in torch DCP's terms. Comes in: Pieces and an Index; goes out: plans. No bytes move.

Plans are local: a rank plans for itself from its own pieces and the index, and asks no other rank.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import ReadItem, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from ftppo.checkpoint.index import Index, Item
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.stock import tensor_metadata, torch_dtype
from ftppo.errors import CheckpointError


@dataclass(frozen=True)
class Wanted:
    """One stored item and the places its content goes to."""

    item: Item
    copies: list[tuple[Piece, ReadItem]] = field(default_factory=list)


def plan_save(pieces: Iterable[Piece]) -> SavePlan:
    """One write item a piece, in order. All pieces hold elements."""
    return SavePlan([_write_item(piece) for piece in pieces])


def plan_load(pieces: Iterable[Piece], index: Index) -> list[Wanted]:
    """The stored items that overlap `pieces`, each once, in the order they lie in storage.

    Raises CheckpointError, naming the key, where a tensor is missing, has another shape or dtype, or lacks elements of
    a piece.
    """
    by_key: dict[str, list[Piece]] = {}
    for piece in pieces:
        if piece.tensor.numel():
            by_key.setdefault(piece.key, []).append(piece)
    wanted: dict[tuple[str, int], Wanted] = {}
    for key, targets in by_key.items():
        items = _stored(key, targets, index)
        for target, read in _reads(key, targets, items):
            assert read.storage_index.index is not None
            item = items[read.storage_index.index]
            wanted.setdefault((item.object, item.start), Wanted(item)).copies.append((target, read))
    return [wanted[place] for place in sorted(wanted)]


def merge_runs(wanted: Sequence[Wanted], limit_bytes: int) -> list[list[Wanted]]:
    """Items that lie next to each other in one object, put together up to `limit_bytes` (one item may be longer)."""
    runs: list[list[Wanted]] = []
    for entry in wanted:
        item, last = entry.item, runs[-1][-1].item if runs else None
        adjacent = last is not None and last.object == item.object and last.start + last.length == item.start
        if adjacent and item.start + item.length - runs[-1][0].item.start <= limit_bytes:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return runs


def _stored(key: str, targets: list[Piece], index: Index) -> list[Item]:
    items = index.by_key.get(key)
    if items is None:
        raise CheckpointError(f"{key}: not in the checkpoint, which holds {len(index.by_key)} tensors")
    shape, dtype = items[0].shape, torch_dtype(items[0])
    for target in targets:
        if target.global_shape != shape:
            raise CheckpointError(f"{key}: the checkpoint has shape {shape}, wanted {target.global_shape}")
        if target.tensor.dtype != dtype:
            raise CheckpointError(f"{key}: the checkpoint has dtype {dtype}, wanted {target.tensor.dtype}")
    return items


def _reads(key: str, targets: list[Piece], items: list[Item]) -> list[tuple[Piece, ReadItem]]:
    """Overlaps of one tensor's pieces with its stored items. Stored items do not overlap, so volumes tell of gaps."""
    found = []
    uncovered = [target.tensor.numel() for target in targets]
    for read in create_read_items_for_chunk_list(key, tensor_metadata(items), [_chunk(target) for target in targets]):
        place = read.dest_index.index
        assert place is not None
        found.append((targets[place], read))
        uncovered[place] -= math.prod(read.lengths)
    for target, missing in zip(targets, uncovered, strict=True):
        if missing:
            raise CheckpointError(f"{key}: {missing} elements of box {target.offset}+{target.size} are not stored")
    return found


def _write_item(piece: Piece) -> WriteItem:
    return WriteItem(
        index=MetadataIndex(piece.key, piece.offset),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(
            chunk=_chunk(piece),
            properties=TensorProperties(dtype=piece.tensor.dtype),
            size=torch.Size(piece.global_shape),
        ),
    )


def _chunk(piece: Piece) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(torch.Size(piece.offset), torch.Size(piece.size))
