"""Log-probabilities and entropies of one rank, against torch's own."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from ftppo.plan.topology import Layout
from ftppo.worker.groups import Groups
from ftppo.worker.logits import token_logprobs

SHAPE = (3, 5, 17)


@pytest.fixture(autouse=True, scope="module")
def world_of_one() -> Iterator[None]:
    groups = Groups()
    groups.create_alone(Layout(), 0)
    yield
    groups.release({})


def random_logits(scale: float = 3.0, dtype: torch.dtype = torch.float32) -> Tensor:
    logits = scale * torch.randn(SHAPE, generator=torch.Generator().manual_seed(0))
    return logits.to(dtype).requires_grad_()


def random_targets() -> Tensor:
    return torch.randint(0, SHAPE[-1], SHAPE[:-1], generator=torch.Generator().manual_seed(1))


def plain(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = (logits.float() / temperature).log_softmax(-1)
    return logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1), -(logprobs.exp() * logprobs).sum(-1)


@pytest.mark.parametrize("temperature", [0.7, 1.0, 1.5])
def test_values_and_gradients_are_those_of_log_softmax(temperature: float) -> None:
    logits, targets = random_logits(), random_targets()
    weight = torch.randn(2, *SHAPE[:-1], generator=torch.Generator().manual_seed(2))
    gradients = []
    for function in (token_logprobs, plain):
        logprobs, entropy = function(logits, targets, temperature)
        gradients.append(torch.autograd.grad((weight[0] * logprobs + weight[1] * entropy).sum(), logits)[0])
    for found, wanted in zip(
        token_logprobs(logits, targets, temperature), plain(logits, targets, temperature), strict=True
    ):
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    assert torch.allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


def test_temperature_zero_counts_as_one() -> None:
    logits, targets = random_logits(), random_targets()
    pairs = zip(token_logprobs(logits, targets, 0.0), token_logprobs(logits, targets, 1.0), strict=True)
    assert all(torch.equal(found, wanted) for found, wanted in pairs)


def test_large_logits_stay_finite() -> None:
    logprobs, entropy = token_logprobs(random_logits(scale=1e4), random_targets(), 1.0)
    assert logprobs.isfinite().all() and entropy.isfinite().all() and (entropy >= 0).all()


def test_low_precision_logits_are_taken_in_float32() -> None:
    logits, targets = random_logits(dtype=torch.bfloat16), random_targets()
    logprobs, entropy = token_logprobs(logits, targets, 1.0)
    assert logprobs.dtype == entropy.dtype == torch.float32
    assert torch.allclose(logprobs, plain(logits, targets, 1.0)[0], rtol=1e-5, atol=1e-6)


def test_a_uniform_distribution_has_the_largest_entropy() -> None:
    logprobs, entropy = token_logprobs(torch.zeros(SHAPE), random_targets(), 1.0)
    wanted = torch.full(SHAPE[:-1], SHAPE[-1]).log()
    assert torch.allclose(entropy, wanted) and torch.allclose(logprobs, -wanted)
