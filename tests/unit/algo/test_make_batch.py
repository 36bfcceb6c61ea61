"""From scores to a Batch: where the KL goes, what is whitened, and that a DP split sees the same numbers."""

import math
from typing import Any

import pytest
import torch

from ftppo.algo.advantages import whiten
from ftppo.algo.batch import make_batch
from ftppo.config import Algo
from ftppo.types import Answers, Batch, Scores, Sequences


def _make(kl_coef: float = 0.0, n: int = 3, **algo: Any) -> tuple[Batch, dict[str, float]]:
    response = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 0.0]])[:n]
    values = torch.tensor([[0.0, 0.5, 0.25, 0.0], [0.0, 0.1, 0.2, 0.3], [0.0, 1.0, 0.0, 0.0]])[:n]
    scores = Scores(logprobs=-1.0 * response, ref_logprobs=-1.5 * response, values=values)
    tokens = torch.arange(4 * n).view(n, 4)
    rewards = torch.tensor([1.0, 0.0, 0.5])[:n]
    answers = Answers(Sequences(tokens, response), drawn=-1.25 * response, rewards=rewards)
    return make_batch(answers, scores, n, Algo(**algo), kl_coef)


def test_returns_are_taken_before_whitening() -> None:
    batch, metrics = _make(gamma=1.0, lam=1.0)
    expected = torch.tensor([[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(batch.returns, expected)
    whitened = batch.advantages[batch.response.bool()]
    assert whitened.mean().abs() < 1e-6 and whitened.std().item() == pytest.approx(1.0)
    assert batch.num_tokens == 6
    assert metrics["response_length"] == 2.0
    assert metrics["kl"] == pytest.approx(0.5)
    assert metrics["rollout_kl"] == pytest.approx(math.exp(0.25) - 1 - 0.25)
    assert metrics["value"] == pytest.approx(2.35 / 6) and metrics["return"] == pytest.approx(2.5 / 6)
    assert metrics["advantage"] == pytest.approx((2.5 - 2.35) / 6)


def test_without_whitening_advantages_are_returns_minus_values() -> None:
    batch, _ = _make(whiten=False)
    torch.testing.assert_close(batch.advantages, batch.returns - batch.values)


def test_kl_in_the_reward_lowers_returns_and_in_the_loss_does_not() -> None:
    plain, _ = _make(0.0, lam=1.0)
    in_reward, _ = _make(0.1, lam=1.0, kl_place="reward")
    in_loss, _ = _make(0.1, lam=1.0, kl_place="loss")
    torch.testing.assert_close(in_reward.returns[1], plain.returns[1] - torch.tensor([0.0, 0.15, 0.10, 0.05]))
    assert torch.equal(in_loss.returns, plain.returns)


@pytest.mark.parametrize("advantage", ["grpo", "rloo", "reinforce_pp"])
def test_without_a_critic_values_do_not_matter_and_nothing_is_said_of_them(advantage: str) -> None:
    batch, metrics = _make(advantage=advantage)
    assert batch.advantages.any() and not batch.returns.any()
    assert metrics.keys() == {"response_length", "kl", "rollout_kl", "advantage"}


def test_what_is_compared_in_a_group_is_centred_already_and_not_whitened_unless_asked() -> None:
    batch, _ = _make(advantage="grpo", divide_by_std=False)
    torch.testing.assert_close(batch.advantages, torch.tensor([[0.5], [-0.5], [0.0]]) * batch.response)
    whitened = _make(advantage="grpo", whiten=True)[0].advantages[batch.response.bool()]
    assert whitened.mean().abs() < 1e-6 and whitened.std().item() == pytest.approx(1.0)


def test_kl_in_the_reward_lowers_what_an_answer_is_worth_to_its_group() -> None:
    batch, _ = _make(0.1, advantage="rloo", kl_place="reward")  # 2, 3, 1 tokens, of a KL of 0.5 each
    worth = torch.tensor([1.0 - 0.10, 0.0 - 0.15, 0.5 - 0.05])
    torch.testing.assert_close(batch.advantages[:, 1], (worth - worth.mean()) * 1.5)


def test_reinforce_pp_whitens_the_rewards_to_come() -> None:
    batch, _ = _make(0.1, advantage="reinforce_pp", kl_place="reward", gamma=1.0)
    to_come = torch.tensor([[0.0, 0.9, 0.95, 0.0], [0.0, -0.15, -0.1, -0.05], [0.0, 0.45, 0.0, 0.0]])
    torch.testing.assert_close(batch.advantages, whiten(to_come, batch.response))
    plain, _ = _make(0.1, advantage="reinforce_pp", kl_place="reward", gamma=1.0, whiten=False)
    torch.testing.assert_close(plain.advantages, to_come)


def test_importance_counts_up_what_was_drawn_less_likely_and_no_more_than_the_cap() -> None:
    plain, _ = _make()
    for cap, factor in ((2.0, math.exp(0.25)), (1.1, 1.1)):
        batch, _ = _make(importance_cap=cap)
        torch.testing.assert_close(batch.advantages, plain.advantages * factor)
        assert torch.equal(batch.returns, plain.returns)


def test_perfect_values_explain_all_variance() -> None:
    response = torch.ones(2, 2)
    values = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    scores = Scores(logprobs=-response, ref_logprobs=-response, values=values)
    rewards = torch.tensor([1.0, 0.0])
    answers = Answers(Sequences(torch.zeros(2, 2).long(), response), -response, rewards)
    _, metrics = make_batch(answers, scores, 2, Algo(lam=1.0), 0.0)
    assert metrics["explained_variance"] == 1.0


def test_one_answer_of_one_token_makes_a_finite_batch() -> None:
    one = torch.ones(1, 1)
    answers = Answers(Sequences(one.long(), one), -one, torch.ones(1))
    batch, metrics = make_batch(answers, Scores(-one, -one, one), 1, Algo(), 0.0)
    assert torch.equal(batch.advantages, torch.zeros(1, 1))
    assert all(value == value for value in metrics.values())
