"""One flipped bit changes it, in any dtype; so does nothing else."""

import pytest
import torch

from ftppo.worker.fingerprint import fingerprint, flip_a_bit


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_flipped_bit_shows(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    modules = [torch.nn.Linear(5, 3), torch.nn.Linear(2, 2)]
    for module in modules:
        module.to(dtype)
    before, weights = fingerprint(modules), modules[1].weight.detach().clone()
    assert fingerprint(modules) == before
    flip_a_bit(modules[1])
    assert abs(fingerprint(modules) - before) == 1
    assert (modules[1].weight.detach() != weights).sum() == 1
    flip_a_bit(modules[1])
    assert fingerprint(modules) == before


def test_a_rank_without_weights_has_one_too() -> None:
    assert fingerprint([torch.nn.Identity()]) == 0
