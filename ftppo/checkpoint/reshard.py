"""State from the copies that slots of another layout made. Comes in: their tables; goes out: filled Pieces.

A table lists the boxes of tensors in a slot's copies as a checkpoint's index does those in its objects, so that what is
to be fetched is planned the same way. Objects are named "slot/version"; the bytes are those of the tensors, bare.
"""

from collections.abc import Callable, Iterable, Sequence

import torch

from ftppo.checkpoint.index import Index, Item, ShardRecord
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.planning import merge_runs, plan_load
from ftppo.checkpoint.shards import RUN_BYTES, copy_wanted
from ftppo.checkpoint.snapshot import Buffer
from ftppo.checkpoint.stock import torch_dtype

type Read = Callable[[str, int, int], Buffer]  # object, start, length -> bytes


def table_of(slot: int, held: Iterable[tuple[str, Sequence[tuple[Piece, tuple[int, int]]]]]) -> bytes:
    """The table of a slot, as JSON: of each object, the pieces to be had from it with their (start, end) in bytes."""
    items = [
        Item(
            key=piece.key,
            shape=piece.global_shape,
            offset=piece.offset,
            size=piece.size,
            dtype=str(piece.tensor.dtype).removeprefix("torch."),
            object=name,
            start=start,
            length=end - start,
            crc32="",  # the exchange checks what it carries
        )
        for name, pieces in held
        for piece, (start, end) in pieces
        if piece.tensor.numel()
    ]
    return ShardRecord(writer=slot, items=tuple(items)).to_bytes()


def fill(pieces: Iterable[Piece], tables: Iterable[bytes], read: Read) -> int:
    """Fill `pieces` with what the tables name, of whatever layout. Returns the bytes read. Raises CheckpointError."""
    index = Index.merge(ShardRecord.from_bytes(table, "the table of a copy") for table in tables)
    num_bytes = 0
    for run in merge_runs(plan_load(pieces, index), RUN_BYTES):
        first, last = run[0].item, run[-1].item
        data = read(first.object, first.start, last.start + last.length - first.start)
        num_bytes += data.nbytes
        for wanted in run:
            item = wanted.item
            begin = item.start - first.start
            bare = torch.frombuffer(data[begin : begin + item.length].data, dtype=torch_dtype(item))
            copy_wanted(wanted, bare.view(item.size))
    return num_bytes
