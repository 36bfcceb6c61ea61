"""Turning pairs of channels: by hand, and back again in the gradient."""

import torch

from ftppo.config import Model
from ftppo.worker.rope import Rotary, inverse_frequencies, rotate

FREQUENCIES = inverse_frequencies(Model(heads=2, kv_heads=1, hidden=8, rope_base=100.0))


def test_a_pair_turns_by_its_position_times_its_frequency() -> None:
    torch.testing.assert_close(FREQUENCIES, torch.tensor([1.0, 0.1]))
    cos, sin = Rotary(FREQUENCIES).angles(4, torch.zeros(()))
    turned = rotate(torch.tensor([1.0, 0.0, 0.0, 2.0]).expand(4, 4), cos, sin)
    for position, row in enumerate(turned):
        first, second = torch.tensor(1.0 * position), torch.tensor(0.1 * position)
        wanted = torch.stack((first.cos(), -2 * second.sin(), first.sin(), 2 * second.cos()))
        torch.testing.assert_close(row, wanted)


def test_the_gradient_is_turned_back() -> None:
    cos, sin = Rotary(FREQUENCIES).angles(3, torch.zeros((), dtype=torch.float64))
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: rotate(x, cos, sin), (x,))


def test_angles_follow_length_and_dtype() -> None:
    rotary = Rotary(FREQUENCIES)
    for length, dtype in ((3, torch.float32), (5, torch.float32), (5, torch.bfloat16)):
        cos, sin = rotary.angles(length, torch.zeros((), dtype=dtype))
        assert cos.shape == sin.shape == (length, 2) and cos.dtype == sin.dtype == dtype
        assert cos[0].tolist() == [1.0, 1.0] and sin[0].tolist() == [0.0, 0.0]
