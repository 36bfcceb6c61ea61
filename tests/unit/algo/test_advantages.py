"""GAE, whitening and group-relative advantages against answers worked out by hand or published with other systems."""

import math

import pytest
import torch
from torch import Tensor

from ftppo.algo.advantages import advantages_of, gae, group_relative, whiten
from ftppo.config import Algo

REWARDS, VALUES = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[0.5, 1.0, 1.5]])


@pytest.mark.parametrize(
    ("gamma", "lam", "returns"),
    [(1.0, 1.0, [6, 5, 3]), (0.5, 1.0, [2.75, 3.5, 3]), (1.0, 0.5, [3.625, 4.25, 3])],
)
def test_gae_returns(gamma: float, lam: float, returns: list[float]) -> None:
    advantages, got = gae(REWARDS, VALUES, torch.ones(1, 3), gamma, lam)
    torch.testing.assert_close(got, torch.tensor([returns], dtype=torch.float32))
    torch.testing.assert_close(advantages, got - VALUES)


@pytest.mark.parametrize(
    ("gamma", "lam", "advantages"),
    [(1.0, 1.0, [5.5, 4, 1.5]), (1.0, 0.95, [5.22875, 3.925, 1.5]), (0.99, 0.95, [5.153952875, 3.89575, 1.5])],
)
def test_gae_advantages(gamma: float, lam: float, advantages: list[float]) -> None:
    torch.testing.assert_close(gae(REWARDS, VALUES, torch.ones(1, 3), gamma, lam)[0], torch.tensor([advantages]))


@pytest.mark.parametrize(("lam", "first"), [(1.0, 3.5), (0.95, 3.425)])
def test_gae_carries_past_masked_positions(lam: float, first: float) -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    advantages, returns = gae(REWARDS, VALUES, mask, 1.0, lam)
    torch.testing.assert_close(advantages, torch.tensor([[first, 0.0, 1.5]]))
    torch.testing.assert_close(returns, torch.tensor([[first + 0.5, 0.0, 3.0]]))


@pytest.mark.parametrize("junk", [math.nan, math.inf, 1e30])
def test_gae_and_whiten_do_not_see_masked_positions(junk: float) -> None:
    generator = torch.Generator().manual_seed(0)
    rewards, values = torch.randn(4, 9, generator=generator), torch.randn(4, 9, generator=generator)
    mask = (torch.rand(4, 9, generator=generator) < 0.6).float()

    def spoil(x: Tensor) -> Tensor:
        return torch.where(mask.bool(), x, torch.full_like(x, junk))

    clean = gae(rewards, values, mask, 0.9, 0.8)
    spoilt = gae(spoil(rewards), spoil(values), mask, 0.9, 0.8)
    assert torch.equal(clean[0], spoilt[0]) and torch.equal(clean[1], spoilt[1])
    assert torch.equal(whiten(values, mask), whiten(spoil(values), mask))


def test_gae_of_a_row_with_a_gap_equals_the_row_without() -> None:
    gap = gae(
        torch.tensor([[1.0, 9.0, 2.0]]), torch.tensor([[0.3, 9.0, 0.7]]), torch.tensor([[1.0, 0.0, 1.0]]), 0.9, 0.8
    )
    dense = gae(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.3, 0.7]]), torch.ones(1, 2), 0.9, 0.8)
    assert torch.equal(gap[0][:, [0, 2]], dense[0])


def test_whiten_is_unbiased_over_the_mask() -> None:
    got = whiten(torch.tensor([[1.0, 2.0, 3.0, 4.0]]), torch.tensor([[0.0, 1.0, 1.0, 0.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.0, -math.sqrt(0.5), math.sqrt(0.5), 0.0]]))


def test_whitened_masked_gae() -> None:
    mask = torch.tensor([[1.0, 0.0, 1.0]])
    got = whiten(gae(REWARDS, VALUES, mask, 1.0, 1.0)[0], mask)
    torch.testing.assert_close(got, torch.tensor([[math.sqrt(0.5), 0.0, -math.sqrt(0.5)]]))


def test_whiten_published_answer() -> None:
    got = whiten(torch.tensor([[5.5, 4.0, 1.5]]), torch.tensor([[1.0, 0.0, 1.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.7071, 0.0, -0.7071]]), atol=1e-4, rtol=0)


@pytest.mark.parametrize("mask", [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
def test_whiten_without_a_variance_is_zero(mask: list[float]) -> None:
    assert torch.equal(whiten(torch.tensor([[5.0, 7.0, 9.0]]), torch.tensor([mask])), torch.zeros(1, 3))


def test_group_relative() -> None:
    scores = torch.tensor([6.0, 3.0, 9.0, 12.0])
    torch.testing.assert_close(group_relative(scores, 2, "mean"), torch.tensor([1.5, -1.5, -1.5, 1.5]))
    torch.testing.assert_close(group_relative(scores, 2, "loo"), torch.tensor([3.0, -3.0, -3.0, 3.0]))
    half = math.sqrt(0.5)
    torch.testing.assert_close(group_relative(scores, 2, "std"), torch.tensor([half, -half, -half, half]))
    assert torch.equal(group_relative(torch.full((4,), 0.5), 4, "std"), torch.zeros(4))


@pytest.mark.parametrize(
    ("algo", "wanted"),
    [
        ({"advantage": "grpo", "divide_by_std": False}, [1.5, -1.5, -1.5, 1.5]),
        ({"advantage": "grpo"}, [math.sqrt(0.5), -math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(0.5)]),
        ({"advantage": "rloo"}, [3.0, -3.0, -3.0, 3.0]),
        ({"advantage": "reinforce_pp"}, [6.0, 3.0, 9.0, 12.0]),
    ],
)
def test_an_answers_advantage_is_that_of_all_its_tokens(algo: dict[str, str | bool], wanted: list[float]) -> None:
    mask = torch.tensor([[0.0, 1.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    rewards = torch.tensor([[9.0, 0.0, 6.0], [9.0, 3.0, math.nan], [0.0, math.nan, 9.0], [9.0, 9.0, 12.0]])
    got, returns = advantages_of(rewards, torch.full_like(mask, math.nan), mask, Algo.model_validate(algo), 2)
    torch.testing.assert_close(got, torch.tensor(wanted)[:, None] * mask)
    assert not returns.any()


def test_reinforce_pp_discounts_what_is_to_come() -> None:
    algo = Algo(advantage="reinforce_pp", gamma=0.5)
    got, _ = advantages_of(REWARDS, VALUES, torch.ones(1, 3), algo, 1)
    torch.testing.assert_close(got, torch.tensor([[2.75, 3.5, 3.0]]))


def test_with_a_critic_advantages_are_those_of_gae() -> None:
    algo = Algo(gamma=0.99, lam=0.95)
    got, returns = advantages_of(REWARDS, VALUES, torch.ones(1, 3), algo, 1)
    torch.testing.assert_close(got, torch.tensor([[5.153952875, 3.89575, 1.5]]))
    torch.testing.assert_close(returns, got + VALUES)
