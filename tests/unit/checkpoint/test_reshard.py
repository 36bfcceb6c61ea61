"""State from the copies of another layout: what lies where is known from the tables, and only that is read."""

import numpy as np
import pytest
import torch

from ftppo.checkpoint.pieces import Piece, flat_pieces
from ftppo.checkpoint.reshard import fill, table_of
from ftppo.checkpoint.snapshot import Buffer, Flat
from ftppo.errors import CheckpointError

SHAPE = (6, 5)
WHOLE = torch.arange(30.0).view(SHAPE)


class Holder:
    """A slot that holds elements [start, stop) of WHOLE and a number of its own behind them."""

    def __init__(self, slot: int, start: int, stop: int) -> None:
        self.pieces = flat_pieces("w", SHAPE, SHAPE, (0, 0), start, WHOLE.flatten()[start:stop].clone())
        flat = Flat([*(piece.tensor for piece in self.pieces), torch.tensor(99.0)])
        self.buffer: Buffer = np.empty(flat.num_bytes, dtype=np.uint8)
        flat.pack(self.buffer)
        spans = zip(self.pieces, flat.spans, strict=False)
        self.table = table_of(slot, [(f"{slot}/moving", list(spans))])


HOLDERS = [Holder(0, 0, 13), Holder(1, 13, 14), Holder(2, 14, 30)]


def read(name: str, start: int, length: int) -> Buffer:
    slot, _, kind = name.partition("/")
    assert kind == "moving"
    return HOLDERS[int(slot)].buffer[start : start + length]


def wanted(start: int, stop: int) -> list[Piece]:
    return flat_pieces("w", SHAPE, SHAPE, (0, 0), start, torch.full((stop - start,), -1.0))


@pytest.mark.parametrize(("start", "stop"), [(0, 30), (0, 15), (15, 30), (7, 22), (13, 14), (29, 30)])
def test_any_cut_is_filled_from_any_other(start: int, stop: int) -> None:
    pieces = wanted(start, stop)
    fill(pieces, [holder.table for holder in HOLDERS], read)
    assert torch.cat([piece.tensor.flatten() for piece in pieces]).tolist() == list(range(start, stop))


def test_only_holders_of_what_is_wanted_are_asked() -> None:
    asked = []

    def noting(name: str, start: int, length: int) -> Buffer:
        asked.append(name)
        return read(name, start, length)

    num_bytes = fill(wanted(20, 30), [holder.table for holder in HOLDERS], noting)
    assert set(asked) == {"2/moving"} and 0 < num_bytes <= HOLDERS[2].buffer.nbytes


def test_what_nobody_holds_is_named() -> None:
    with pytest.raises(CheckpointError, match="w: 1 of 30 elements"):
        fill(wanted(0, 30), [HOLDERS[0].table, HOLDERS[2].table], read)
