"""Where each box of each tensor lies in storage. Comes in: one ShardRecord a writer; goes out: an Index, as JSON.

No torch here and no pickle: a driver can carry records and read an index, and reading one runs no code.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Self

from pydantic import BaseModel, ConfigDict, ValidationError

from ftppo.errors import CheckpointError, CorruptCheckpoint


class Record(BaseModel):
    """Data that is kept as JSON: frozen, closed to unknown keys, equal after a round trip (NaN and infinity too)."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="constants")

    def to_bytes(self) -> bytes:
        """UTF-8 JSON."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes, name: str) -> Self:
        """The record kept in `data`; `name` says where it came from. Raises CorruptCheckpoint where it is none."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            first = error.errors()[0]
            raise CorruptCheckpoint(f"{name} is no {cls.__name__.lower()}: {first['loc']}: {first['msg']}") from error


class Item(Record):
    """One stored box of a tensor, serialised on its own.

    Example: Item(key="w", shape=(4, 3), offset=(2, 0), size=(2, 3), dtype="float32", object="__0_0.distcp", start=0,
    length=1164, crc32="1c291ca3")
    """

    key: str
    shape: tuple[int, ...]  # of the whole logical tensor
    offset: tuple[int, ...]
    size: tuple[int, ...]
    dtype: str  # torch's name without the prefix
    object: str  # name within the attempt's folder
    start: int  # bytes into the object
    length: int  # bytes
    crc32: str  # of those bytes, 8 hexadecimal digits; empty: none was taken


class ObjectRecord(Record):
    """A whole stored object, as its writer saw it. `name` is relative to the attempt's folder."""

    name: str
    size: int  # bytes
    crc32: str  # 8 hexadecimal digits


class ShardRecord(Record):
    """The outcome of one writer: what it stored, or the error that kept it from doing so."""

    writer: int
    items: tuple[Item, ...] = ()
    objects: tuple[ObjectRecord, ...] = ()
    retries: int = 0
    error: str | None = None


class Index(Record):
    """All items of a checkpoint, sorted by key and offset."""

    items: tuple[Item, ...]

    @classmethod
    def merge(cls, records: Iterable[ShardRecord]) -> "Index":
        """The index of what all writers stored. Raises CheckpointError, naming the key, where they tile no tensor."""
        items = (item for record in records for item in record.items)
        index = cls(items=tuple(sorted(items, key=lambda item: (item.key, item.offset))))
        for key, boxes in index.by_key.items():
            check_tiling(key, boxes)
        return index

    @cached_property
    def by_key(self) -> dict[str, list[Item]]:
        """Items of each tensor."""
        found: dict[str, list[Item]] = {}
        for item in self.items:
            found.setdefault(item.key, []).append(item)
        return found


def check_tiling(key: str, items: Sequence[Item]) -> None:
    """Raises CheckpointError unless the items of `key` agree on shape and dtype and cover every element once."""
    shape, dtype = items[0].shape, items[0].dtype
    for item in items:
        if (item.shape, item.dtype) != (shape, dtype):
            raise CheckpointError(f"{key}: writers disagree: {shape} {dtype} and {item.shape} {item.dtype}")
        if any(at < 0 or at + n > whole for at, n, whole in zip(item.offset, item.size, shape, strict=True)):
            raise CheckpointError(f"{key}: box {item.offset}+{item.size} leaves {shape}")
    pair = _overlap(items, max(range(len(shape)), key=shape.__getitem__, default=None))
    if pair is not None:
        raise CheckpointError(f"{key}: written twice: {_place(pair[0])} and {_place(pair[1])}")
    covered, whole = sum(math.prod(item.size) for item in items), math.prod(shape)
    if covered != whole:
        raise CheckpointError(f"{key}: {whole - covered} of {whole} elements were written by nobody")


def _overlap(items: Sequence[Item], axis: int | None) -> tuple[Item, Item] | None:
    """A pair of boxes that share an element. Sweeps along the longest axis, so that few pairs are compared."""
    if axis is None:
        return (items[0], items[1]) if len(items) > 1 else None
    active: list[Item] = []
    for item in sorted(items, key=lambda item: item.offset[axis]):
        active = [other for other in active if other.offset[axis] + other.size[axis] > item.offset[axis]]
        for other in active:
            sides = zip(item.offset, item.size, other.offset, other.size, strict=True)
            if all(max(a, b) < min(a + n, b + m) for a, n, b, m in sides):
                return item, other
        active.append(item)
    return None


def _place(item: Item) -> str:
    return f"{item.offset}+{item.size} in {item.object}"
