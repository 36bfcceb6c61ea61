"""KL estimators, the penalised reward and the adaptive coefficient."""

import math

import pytest
import torch

from ftppo.algo.kl import Kind, kl_per_token, next_coef, penalised_rewards


@pytest.mark.parametrize(("kind", "expected"), [("k1", 0.1), ("k2", 0.005), ("k3", 0.0048374)])
def test_known_answers(kind: Kind, expected: float) -> None:
    got = kl_per_token(torch.tensor([[-1.0]], dtype=torch.float64), torch.tensor([[-1.1]], dtype=torch.float64), kind)
    assert got.item() == pytest.approx(expected, abs=1e-7)


def test_k3_is_clamped() -> None:
    assert kl_per_token(torch.tensor([-100.0]), torch.tensor([0.0]), "k3").item() == 10.0
    assert kl_per_token(torch.tensor([100.0]), torch.tensor([0.0]), "k3").item() == 10.0


@pytest.mark.parametrize(("mu", "noise", "bias"), [(0.1, 20.0, 0.0025), (1.0, 2.0, 0.25)])
def test_schulmans_gaussians(mu: float, noise: float, bias: float) -> None:
    """Samples of N(0, 1) against N(mu, 1), whose KL is mu^2 / 2; quadrature in place of sampling."""
    x = torch.linspace(-9, 9, 20001, dtype=torch.float64)
    weight = torch.exp(-(x**2) / 2)
    weight = weight / weight.sum()
    logp, ref = -(x**2) / 2, -((x - mu) ** 2) / 2
    true = mu**2 / 2
    k1, k2, k3 = (kl_per_token(logp, ref, kind) for kind in ("k1", "k2", "k3"))
    assert (weight * k1).sum().item() == pytest.approx(true, rel=1e-6)
    assert (weight * (k1 - true) ** 2).sum().sqrt().item() / true == pytest.approx(noise, rel=1e-3)
    assert (weight * k2).sum().item() / true - 1 == pytest.approx(bias, rel=1e-3)
    assert (weight * k3).sum().item() == pytest.approx(true, rel=1e-2)  # its clamp takes 0.9 % at mu = 1
    assert (k3 >= 0).all()


def test_score_lands_on_the_last_response_token() -> None:
    mask = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0]])
    got = penalised_rewards(torch.tensor([5.0, 7.0]), torch.zeros(2, 4), torch.full((2, 4), -0.5), mask, 0.1, "k1")
    torch.testing.assert_close(got, torch.tensor([[0.0, -0.05, 4.95, 0.0], [0.0, -0.05, 0.0, 6.95]]))


@pytest.mark.parametrize("coef", [0.0, 0.1])
def test_nan_at_masked_positions_does_not_leak_into_rewards(coef: float) -> None:
    mask = torch.tensor([[0.0, 1.0, 0.0]])
    logprobs = torch.tensor([[math.nan, -1.0, math.nan]])
    got = penalised_rewards(torch.tensor([1.0]), logprobs, torch.tensor([[0.0, -1.0, math.inf]]), mask, coef, "k3")
    assert torch.equal(got, torch.tensor([[0.0, 1.0, 0.0]]))


def test_a_row_without_response_is_refused() -> None:
    with pytest.raises(AssertionError, match="nowhere"):
        penalised_rewards(torch.ones(1), torch.zeros(1, 2), torch.zeros(1, 2), torch.zeros(1, 2), 0.0, "k1")


@pytest.mark.parametrize(("kl", "factor"), [(6.0, 1.0), (6.6, 1.001), (600.0, 1.002), (0.0, 0.998)])
def test_next_coef(kl: float, factor: float) -> None:
    assert next_coef(0.5, kl, 6.0, 10000.0, 100) == pytest.approx(0.5 * factor)
