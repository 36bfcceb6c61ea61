"""Flat ranges as boxes: any range, any shape, exact, few, and views of the same memory."""

import math
import random

import pytest
import torch

from ftppo.checkpoint.pieces import Piece, box_view, boxes, flat_pieces


def random_case(seed: int) -> tuple[tuple[int, ...], int, int]:
    draw = random.Random(seed)
    shape = tuple(draw.randint(1, 5) for _ in range(draw.randint(0, 4)))
    start, stop = sorted(draw.randint(0, math.prod(shape)) for _ in range(2))
    return shape, start, stop


@pytest.mark.parametrize("seed", range(200))
def test_boxes_hold_exactly_the_range_in_order(seed: int) -> None:
    shape, start, stop = random_case(seed)
    whole = torch.arange(math.prod(shape)).view(shape)
    found = boxes(shape, start, stop)
    elements = [whole[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].reshape(-1) for box in found]
    assert torch.cat([torch.empty(0, dtype=torch.int64), *elements]).tolist() == list(range(start, stop))
    assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize("seed", range(50))
def test_views_share_memory_with_the_flat_shard(seed: int) -> None:
    shape, start, stop = random_case(seed)
    flat = torch.arange(start, stop)
    whole = torch.arange(math.prod(shape)).view(shape)
    for box in boxes(shape, start, stop):
        view = box_view(flat, shape, start, box)
        assert torch.equal(view, whole[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))])
        view.fill_(-1)
    assert (flat == -1).all()


def test_known_decomposition() -> None:
    assert boxes((4, 3), 2, 10) == [((0, 2), (1, 1)), ((1, 0), (2, 3)), ((3, 0), (1, 1))]
    assert boxes((2, 3, 4), 0, 24) == [((0, 0, 0), (2, 3, 4))]
    assert boxes((4, 3), 4, 5) == [((1, 1), (1, 1))]
    assert boxes((), 0, 1) == [((), ())]
    assert boxes((0, 3), 0, 0) == []


def test_flat_pieces_of_a_tensor_that_is_cut_already() -> None:
    whole = torch.arange(8 * 6, dtype=torch.float32).view(8, 6)
    local = whole[:, 3:].contiguous()  # the second of two column-parallel ranks
    flat = local.view(-1)[5:20].clone()
    pieces = flat_pieces("w", (8, 6), (8, 3), (0, 3), 5, flat)
    for piece in pieces:
        box = tuple(slice(a, a + n) for a, n in zip(piece.offset, piece.size, strict=True))
        assert torch.equal(piece.tensor, whole[box])
    assert sum(piece.tensor.numel() for piece in pieces) == 15


def test_a_box_outside_the_tensor_is_refused() -> None:
    with pytest.raises(AssertionError, match="w: box"):
        Piece("w", (4, 3), (2, 0), torch.zeros(3, 3))
    with pytest.raises(AssertionError, match="leaves"):
        boxes((4, 3), 3, 13)
