"""Live state as boxes of logical tensors, so that any layout can read what any other layout wrote.

Comes in: tensors, and where they lie in the whole; goes out: Pieces, each a writable view of one box. No other rank is
asked.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

type Box = tuple[tuple[int, ...], tuple[int, ...]]  # (offset, size), one number a dimension


@dataclass(frozen=True)
class Piece:
    """A live, writable view of the box [offset, offset + tensor.shape) of the logical tensor `key`.

    Example: Piece("decoder.layers.0.mlp.weight", (256, 128), (128, 0), weight)  # weight [128, 128]: the lower half
    """

    key: str
    global_shape: tuple[int, ...]
    offset: tuple[int, ...]
    tensor: Tensor

    def __post_init__(self) -> None:
        size = self.size
        assert len(self.global_shape) == len(self.offset) == len(size), f"{self.key}: dimensions differ"
        sides = zip(self.offset, size, self.global_shape, strict=True)
        assert all(at >= 0 and at + n <= whole for at, n, whole in sides), (
            f"{self.key}: box {self.offset}+{size} leaves {self.global_shape}"
        )

    @property
    def size(self) -> tuple[int, ...]:
        """Extent of the box, one number a dimension."""
        return tuple(self.tensor.shape)


def boxes(shape: Sequence[int], start: int, stop: int) -> list[Box]:
    """The flat row-major range [start, stop) of a tensor of `shape`, as at most 2 * dims - 1 boxes in ascending order.

    Each box is itself contiguous in row-major order, so it is a plain view of a flat tensor that holds the range.
    Example: boxes((4, 3), 2, 10) is the end of row 0, rows 1 and 2, the start of row 3.
    """
    assert 0 <= start <= stop <= math.prod(shape), f"range [{start}, {stop}) leaves {tuple(shape)}"
    if start == stop:
        return []
    if len(shape) == 0:
        return [((), ())]
    inner = math.prod(shape[1:])
    first, last = -(-start // inner), stop // inner  # rows [first, last) lie whole in the range
    if first > last:  # the range begins and ends inside one row
        return _in_row(shape, last, start, stop)
    found = _in_row(shape, first - 1, start, first * inner) if start < first * inner else []
    if first < last:
        found.append(((first, *(0 for _ in shape[1:])), (last - first, *shape[1:])))
    if last * inner < stop:
        found += _in_row(shape, last, last * inner, stop)
    return found


def _in_row(shape: Sequence[int], row: int, start: int, stop: int) -> list[Box]:
    base = row * math.prod(shape[1:])
    return [((row, *offset), (1, *size)) for offset, size in boxes(shape[1:], start - base, stop - base)]


def box_view(flat: Tensor, shape: Sequence[int], start: int, box: Box) -> Tensor:
    """The view of `box`, one of `boxes`, in `flat` [n]: elements [start, start + n) of a tensor of `shape`."""
    offset, size = box
    begin = 0
    for at, extent in zip(offset, shape, strict=True):
        begin = begin * extent + at
    return flat.narrow(0, begin - start, math.prod(size)).view(size)


def flat_pieces(
    key: str,
    global_shape: Sequence[int],
    local_shape: Sequence[int],
    local_offset: Sequence[int],
    start: int,
    flat: Tensor,
) -> list[Piece]:
    """Pieces of a flat shard: `flat` [n] holds elements [start, start + n) of the local tensor, row-major.

    The local tensor is the box [local_offset, local_offset + local_shape) of the logical one. This is what a
    distributed optimizer keeps of a parameter that tensor parallelism has cut. Writing to a piece writes to `flat`.
    """
    return [
        Piece(
            key,
            tuple(global_shape),
            tuple(at + base for at, base in zip(box[0], local_offset, strict=True)),
            box_view(flat, local_shape, start, box),
        )
        for box in boxes(local_shape, start, start + flat.numel())
    ]
