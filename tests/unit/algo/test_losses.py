"""Policy and value losses: published answers, clipping where it should be, sums that no split of the rows changes."""

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from ftppo.algo.losses import importance, policy_loss, token_weights, value_loss

Aggregate = Literal["token_mean", "seq_mean", "token_sum"]
AGGREGATES: tuple[Aggregate, ...] = ("token_mean", "seq_mean", "token_sum")
ONES = torch.ones(1, 3)


def test_dual_clip_answer() -> None:
    new, old = torch.tensor([[-1.69315, -1.0, -0.69741]]), torch.tensor([[-1.0, -1.0, -3.0]])
    result = policy_loss(new, old, torch.tensor([[1.0, -1.0, -4.0]]), ONES, 0.2, 0.2, 3.0)
    torch.testing.assert_close(result.per_token, torch.tensor([[-0.5, 1.0, 12.0]]), atol=1e-4, rtol=0)
    assert result.per_token.sum().item() == pytest.approx(12.5, abs=1e-4)
    assert result.per_token.sum().item() / 3 == pytest.approx(4.1667, abs=1e-4)
    assert result.clipped_sum.item() == 1
    assert result.kl_sum.item() == pytest.approx(0.5 - 1 + math.log(2) + 10 - 1 - math.log(10), abs=1e-3)


def test_without_dual_clip_a_large_ratio_counts_in_full() -> None:
    new, old = torch.tensor([[-0.69741]]), torch.tensor([[-3.0]])
    result = policy_loss(new, old, torch.tensor([[-4.0]]), torch.ones(1, 1), 0.2, 0.2, None)
    assert result.per_token.sum().item() == pytest.approx(40.0, abs=1e-3)


def test_plain_clip_answer() -> None:
    new, old = torch.tensor([[-1.69315, -1.0, -0.59453]]), torch.full((1, 3), -1.0)
    result = policy_loss(new, old, torch.tensor([[1.0, -1.0, 2.0]]), ONES, 0.2, 0.2, None)
    torch.testing.assert_close(result.per_token, torch.tensor([[-0.5, 1.0, -2.4]]), atol=1e-4, rtol=0)
    assert result.per_token.sum().item() / 3 == pytest.approx(-0.6333, abs=1e-4)


def test_upper_and_lower_clip_are_their_own() -> None:
    new = torch.tensor([[math.log(1.5), math.log(0.5)]])
    result = policy_loss(new, torch.zeros(1, 2), torch.tensor([[1.0, -1.0]]), torch.ones(1, 2), 0.1, 0.28, None)
    torch.testing.assert_close(result.per_token, torch.tensor([[-1.28, 0.9]]))
    assert result.clipped_sum.item() == 2


def test_extreme_log_ratios_stay_finite() -> None:
    new = torch.tensor([[500.0, -500.0]], requires_grad=True)
    result = policy_loss(new, torch.zeros(1, 2), torch.tensor([[-1.0, 1.0]]), torch.ones(1, 2), 0.2, 0.2, None)
    result.per_token.sum().backward()
    assert new.grad is not None and torch.isfinite(new.grad).all()
    torch.testing.assert_close(result.per_token[0, 0], torch.tensor(20.0).exp())


def test_clipped_tokens_have_no_gradient_and_others_minus_advantage_times_ratio() -> None:
    new = torch.tensor([[math.log(1.5), math.log(1.1)]], requires_grad=True)
    policy_loss(
        new, torch.zeros(1, 2), torch.tensor([[2.0, 2.0]]), torch.ones(1, 2), 0.2, 0.2, 3.0
    ).per_token.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[0.0, -2.2]]))


def test_importance_is_truncated_from_above_and_blind_to_what_is_masked() -> None:
    now = torch.tensor([[math.log(0.5), math.log(0.9), 0.0, math.nan]])
    drawn = torch.tensor([[0.0, math.log(0.3), -99.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0, 0.0]])
    got = importance(now, drawn, mask, 2.0)
    torch.testing.assert_close(got[:, :3], torch.tensor([[0.5, 2.0, 2.0]]))
    assert torch.isfinite(got).all()
    assert importance(now, drawn, mask, 1e12)[0, 2].item() == pytest.approx(math.exp(20.0))


def test_an_advantage_times_its_importance_is_a_loss_times_it() -> None:
    now, old, advantages, mask = _rows()
    weight = importance(now, old, mask, 1.5)
    scaled = policy_loss(now, old, advantages * weight, mask, 0.2, 0.28, 3.0).per_token
    torch.testing.assert_close(scaled, policy_loss(now, old, advantages, mask, 0.2, 0.28, 3.0).per_token * weight)


def test_value_loss() -> None:
    values = torch.tensor([[1.0, 0.1, -0.05]], requires_grad=True)
    result = value_loss(values, torch.zeros(1, 3), torch.tensor([[1.0, 1.0, 1.0]]), ONES, 0.2)
    expected = torch.tensor([[0.5 * 0.8**2, 0.5 * 0.9**2, 0.5 * 1.05**2]])
    torch.testing.assert_close(result.per_token, expected)
    assert result.clipped_sum.item() == 1
    result.per_token.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, -0.9, -1.05]]))


def test_value_loss_without_clip() -> None:
    result = value_loss(torch.tensor([[3.0]]), torch.tensor([[0.0]]), torch.tensor([[1.0]]), torch.ones(1, 1), None)
    assert (result.per_token.sum().item(), result.clipped_sum.item()) == (2.0, 0.0)


@pytest.mark.parametrize(("aggregate", "wanted"), [("token_mean", 2.0), ("seq_mean", 3.0), ("token_sum", 4.0)])
def test_how_answers_of_different_lengths_count(aggregate: Aggregate, wanted: float) -> None:
    losses, mask = (
        torch.tensor([[0.0, 1.0, 1.0, 1.0], [0.0, 5.0, 0.0, 0.0]]),
        torch.tensor([[0.0, 1, 1, 1], [0, 1, 0, 0]]),
    )
    assert (losses * token_weights(mask, 4.0, 2, aggregate)).sum().item() == pytest.approx(wanted)


def test_a_row_without_an_answer_weighs_nothing() -> None:
    for aggregate in AGGREGATES:
        assert not token_weights(torch.zeros(1, 3), 4.0, 2, aggregate).any()


def _rows(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    now, old, other = (torch.randn(12, 7, generator=generator, dtype=torch.float64) for _ in range(3))
    return now, old, other, (torch.rand(12, 7, generator=generator) < 0.5).double()


@pytest.mark.parametrize("sizes", [[12], [1] * 12, [4, 4, 4], [1, 4, 7]])
@pytest.mark.parametrize("kind", ["policy", "value"])
@pytest.mark.parametrize("aggregate", AGGREGATES)
def test_losses_and_gradients_are_equal_under_any_micro_batch_split(
    kind: str, sizes: list[int], aggregate: Aggregate
) -> None:
    now, old, other, mask = _rows()

    def gradient(parts: list[int]) -> tuple[Tensor, Tensor]:
        weight = torch.ones(7, dtype=torch.float64, requires_grad=True)
        total = torch.zeros((), dtype=torch.float64)
        for a, b, c, m in zip(*(x.split(parts) for x in (now, old, other, mask)), strict=True):
            if kind == "policy":
                per_token = policy_loss(a * weight, b, c, m, 0.2, 0.2, 3.0).per_token
            else:
                per_token = value_loss(a * weight, b, c, m, 0.2).per_token
            loss = (per_token * token_weights(m, float(mask.sum()), len(mask), aggregate)).sum()
            loss.backward()
            total += loss.detach()
        assert weight.grad is not None
        return total, weight.grad

    whole, split = gradient([12]), gradient(sizes)
    torch.testing.assert_close(split[0], whole[0])
    torch.testing.assert_close(split[1], whole[1])
    assert whole[1].abs().sum() > 0


@pytest.mark.parametrize("kind", ["policy", "value"])
def test_nan_at_masked_positions_reaches_neither_sums_nor_gradients(kind: str) -> None:
    now, old, other, mask = _rows()

    def run(junk: float) -> list[Tensor]:
        a, b, c = (torch.where(mask.bool(), x, torch.full_like(x, junk)) for x in (now, old, other))
        a.requires_grad_()
        result = policy_loss(a, b, c, mask, 0.2, 0.2, 3.0) if kind == "policy" else value_loss(a, b, c, mask, 0.2)
        result.per_token.sum().backward()
        assert a.grad is not None
        return [result.per_token.sum().detach(), result.clipped_sum, a.grad]

    for clean, spoilt in zip(run(0.0), run(math.nan), strict=True):
        assert torch.equal(clean, spoilt)
