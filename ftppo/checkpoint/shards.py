"""Moves pieces to storage and back. Comes in: Pieces; goes out: a ShardRecord, or filled Pieces. No collectives.

Each piece becomes one item, stored as torch DCP's FileSystemWriter stores it: torch.save of the tensor, one after
another in the writer's object. Each carries its own CRC32, so that a ranged read can be trusted.
"""

import io
import itertools
from collections.abc import Buffer, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import IO, cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.planner import WriteItem
from torch.serialization import get_crc32_options, set_crc32_options

from ftppo.checkpoint.index import Index, Item, ObjectRecord, ShardRecord
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.planning import Wanted, merge_runs, plan_load, plan_save
from ftppo.checkpoint.stock import torch_dtype
from ftppo.errors import CorruptCheckpoint, NotFound
from ftppo.storage.base import ObjectStore
from ftppo.storage.crc import crc32
from ftppo.storage.retry import Retrier
from ftppo.storage.writer import BufferedWriter

RUN_BYTES = 64 * 2**20  # longest ranged read of several items; with `threads` of them it bounds the memory of a load


def write_shards(
    pieces: Iterable[Piece],
    store: ObjectStore,
    prefix: str,
    writer_id: int,
    retrier: Retrier,
    part_bytes: int = 8 * 2**20,
    ring_buffers: int = 4,
) -> ShardRecord:
    """Stores `pieces` as one object of the attempt's folder `prefix` and says where each went. Writer ids are unique.

    Each tensor is serialised once, straight into the writer's buffers; what is not a plain host tensor of its own is
    copied to one, one at a time. The tensors must not change meanwhile: for a save in the background pass copies.
    The writer retries by itself: `store` is a plain one. Raises StorageError where it gives up.
    """
    kept = [piece for piece in pieces if piece.tensor.numel()]
    if not kept:
        return ShardRecord(writer=writer_id)
    name = f"__{writer_id}_0.distcp"  # torch's own: writer, number of the file
    with BufferedWriter(store, _key(prefix, name), retrier, part_bytes, ring_buffers) as stream:
        lengths = [_serialise(stream, piece.tensor) for piece in kept]
        written = stream.close()
    stored = ObjectRecord(name=name, size=written.size_bytes, crc32=written.crc32)
    starts = itertools.accumulate(lengths, initial=0)
    places = zip(starts, lengths, written.stretches, strict=False)  # one start more than there are items
    items = tuple(_item(planned, name, *place) for planned, place in zip(plan_save(kept).items, places, strict=True))
    return ShardRecord(writer=writer_id, items=items, objects=(stored,), retries=written.retries)


def read_shards(pieces: Iterable[Piece], index: Index, store: ObjectStore, prefix: str, threads: int = 4) -> int:
    """Fills `pieces` from the checkpoint in folder `prefix`, whatever boxes it was written in. Returns bytes fetched.

    Without a prefix the folder is the store's root. Only items that overlap the pieces are fetched, each once. Raises
    CheckpointError, naming the key, before anything is fetched where a tensor is missing or differs in shape or dtype;
    CorruptCheckpoint, naming the object, where bytes are gone or not those written. After an error the pieces hold a
    mixture: load again before use.
    """
    runs = merge_runs(plan_load(pieces, index), RUN_BYTES)
    with ThreadPoolExecutor(threads, thread_name_prefix="load") as pool:
        futures = [pool.submit(_read_run, run, store, prefix) for run in runs]
        try:
            return sum(future.result() for future in futures)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)  # nobody may write to the pieces once we have raised
            raise


class _Measured:
    """Passes bytes on, counted. Keeps the stream's error: torch.save would hide it behind its own."""

    def __init__(self, stream: BufferedWriter) -> None:
        self.stream, self.length = stream, 0
        self.error: BaseException | None = None

    def write(self, data: Buffer) -> int:
        view = memoryview(data).cast("B")
        if self.error is None:
            try:
                self.stream.write(view)
            except BaseException as error:
                self.error = error
        self.length += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        """Nothing is held back here."""


def _serialise(stream: BufferedWriter, tensor: Tensor) -> int:
    """Append a tensor to the stream, as a stretch of its own; its length in bytes."""
    measured = _Measured(stream)
    with _no_sums_of_torchs_own():
        torch.save(_on_host(tensor), cast(IO[bytes], measured))
    if measured.error is not None:
        raise measured.error
    stream.mark()
    return measured.length


@contextmanager
def _no_sums_of_torchs_own() -> Iterator[None]:
    """torch.save puts a CRC-32 into its archives that torch.load does not look at; the index has one that we do."""
    before = get_crc32_options()
    set_crc32_options(False)
    try:
        yield
    finally:
        set_crc32_options(before)


def _item(planned: WriteItem, name: str, start: int, length: int, crc32: str) -> Item:
    assert planned.tensor_data is not None and planned.index.offset is not None
    return Item(
        key=planned.index.fqn,
        shape=tuple(planned.tensor_data.size),
        offset=tuple(planned.index.offset),
        size=tuple(planned.tensor_data.chunk.sizes),
        dtype=str(planned.tensor_data.properties.dtype).removeprefix("torch."),
        object=name,
        start=start,
        length=length,
        crc32=crc32,
    )


def _on_host(tensor: Tensor) -> Tensor:
    """`tensor` on the host, without attributes or gradient, its storage its own: torch.save writes all of a storage."""
    tensor = tensor.detach()
    if tensor.is_cpu and tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes:
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor)


def _read_run(run: Sequence[Wanted], store: ObjectStore, prefix: str) -> int:
    parts = _fetch(run, store, prefix)
    if not all(_intact(wanted.item, part) for wanted, part in zip(run, parts, strict=True)):
        parts = _fetch(
            run, store, prefix
        )  # what was damaged on the way, and not in the store, is whole the second time
    for wanted, part in zip(run, parts, strict=True):
        copy_wanted(wanted, _decode(wanted.item, part, prefix))
    return sum(len(part) for part in parts)


def _fetch(run: Sequence[Wanted], store: ObjectStore, prefix: str) -> list[memoryview]:
    """The bytes of each item of a run, in one read; fewer where the object ends early."""
    first, last = run[0].item, run[-1].item
    key = _key(prefix, first.object)
    try:
        data = memoryview(store.get(key, first.start, last.start + last.length - first.start))
    except NotFound as error:
        raise CorruptCheckpoint(f"{key}: the object is missing") from error
    begins = [wanted.item.start - first.start for wanted in run]
    return [data[begin : begin + wanted.item.length] for begin, wanted in zip(begins, run, strict=True)]


def _key(prefix: str, name: str) -> str:
    return f"{prefix}/{name}" if prefix else name


def _intact(item: Item, data: memoryview) -> bool:
    return len(data) == item.length and item.crc32 in ("", f"{crc32(data):08x}")


def _decode(item: Item, data: memoryview, prefix: str) -> Tensor:
    if not _intact(item, data):
        place = f"bytes {item.start} to {item.start + item.length}"
        raise CorruptCheckpoint(f"{_key(prefix, item.object)}: {place} ({item.key}) are not what was written")
    tensor = cast(Tensor, torch.load(io.BytesIO(data), map_location="cpu", weights_only=True))
    if tuple(tensor.shape) != item.size or tensor.dtype != torch_dtype(item):
        raise CorruptCheckpoint(
            f"{_key(prefix, item.object)}: {item.key} is {tensor.dtype} {tuple(tensor.shape)}, not {item.size}"
        )
    return tensor


def copy_wanted(wanted: Wanted, source: Tensor) -> None:
    """Put the content of an item into the places that want it."""
    with torch.no_grad():  # per thread, and a piece may be a view of a parameter
        for piece, read in wanted.copies:
            target = piece.tensor[_box(read.dest_offsets, read.lengths)]
            target.copy_(source[_box(read.storage_offsets, read.lengths)])


def _box(offset: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(at, at + n) for at, n in zip(offset, size, strict=True))
