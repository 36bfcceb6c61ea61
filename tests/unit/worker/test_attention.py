"""Zigzag cuts of a sequence: put together they are the whole, and every rank has as much causal work as any other."""

import pytest
import torch

from ftppo.worker.attention import unzigzag, zigzag

SIZES = [1, 2, 3, 4]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_unzigzag_undoes_zigzag(size: int, dim: int) -> None:
    shape = [3, 3, 3]
    shape[dim] = 4 * size
    whole = torch.arange(36 * size).view(shape)
    parts = [zigzag(whole, rank, size, dim) for rank in range(size)]
    assert all(part.shape[dim] == 4 for part in parts)
    assert torch.equal(unzigzag(parts, dim), whole)


@pytest.mark.parametrize("size", SIZES)
def test_ranks_share_causal_work_evenly(size: int) -> None:
    positions = torch.arange(8 * size)
    work = {int((zigzag(positions, rank, size, 0) + 1).sum()) for rank in range(size)}
    assert len(work) == 1


def test_order_within_a_rank_is_that_of_the_sequence() -> None:
    assert zigzag(torch.arange(8), 0, 2, 0).tolist() == [0, 1, 6, 7]
    assert zigzag(torch.arange(8), 1, 2, 0).tolist() == [2, 3, 4, 5]
