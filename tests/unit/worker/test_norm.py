"""The norm against torch's own, and its gradient against finite differences."""

import pytest
import torch
from megatron.core.transformer import TransformerConfig

from ftppo.worker.norm import RMSNorm

EPS = 1e-2  # large enough to matter


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)])
def test_it_equals_torchs_norm_in_value_and_gradient(dtype: torch.dtype, tolerance: float) -> None:
    norm = _norm(6, dtype)
    x = torch.randn(3, 2, 6, dtype=dtype, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    weight = norm.weight.detach().clone().requires_grad_()
    grad = torch.randn(3, 2, 6, dtype=dtype)
    found = norm(x)
    wanted = torch.nn.functional.rms_norm(other, (6,), weight, EPS)
    found.backward(grad)
    wanted.backward(grad)
    assert norm.weight.grad is not None and found.dtype == dtype
    for got, given in ((found, wanted), (x.grad, other.grad), (norm.weight.grad, weight.grad)):
        assert got is not None and given is not None and got.dtype == given.dtype
        torch.testing.assert_close(got, given, rtol=tolerance, atol=tolerance * 4)


def test_its_gradient_is_the_slope() -> None:
    norm = _norm(5, torch.float64)
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: norm(x), (x, norm.weight))


def _norm(size: int, dtype: torch.dtype) -> RMSNorm:
    torch.manual_seed(0)
    config = TransformerConfig(num_layers=1, hidden_size=size, num_attention_heads=1, params_dtype=dtype)
    norm = RMSNorm(config, size, EPS)
    torch.nn.init.uniform_(norm.weight, 0.5, 2.0)
    return norm
