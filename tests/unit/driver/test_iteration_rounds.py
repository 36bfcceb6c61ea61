"""Dynamic sampling in an iteration: which prompts are drawn, which are learned from, where the stream stands after."""

import dataclasses
from collections.abc import Sequence

import pytest

from ftppo.config import Algo
from ftppo.driver.iteration import Iteration, Workshop
from ftppo.driver.mesh import GenerationBroken
from ftppo.tasks.base import Asked
from tests.unit.driver.workbench import (
    NUM_ROWS,
    NUM_STEPS,
    ROLLOUT_S,
    STATE,
    TOKENIZER,
    Counting,
    FakeMesh,
    give_mesh,
    workshop,
)


class HalfSolved(Counting):
    """All answers to a prompt of an even number are worth 1."""

    def scores(self, asked: Sequence[Asked]) -> list[float]:
        worth = super().scores(asked)
        return [one if prompt.index % 2 else 1.0 for one, (prompt, _) in zip(worth, asked, strict=True)]


def shop_with(dynamic_rounds: int) -> Workshop:
    shop, _ = workshop(algo=Algo(dynamic_rounds=dynamic_rounds))
    shop.task = HalfSolved()
    return shop


def prompts_of(mesh: FakeMesh, method: str) -> list[list[str]]:
    """The prompts of each call, by row."""
    rows = [call.rows.tokens.tolist() for call in mesh.calls if call.method == method]
    return [[TOKENIZER.decode(row[:3]) for row in one] for one in rows]


def twice(*numbers: int) -> list[str]:
    return [f"p{number}" for number in numbers for _ in range(2)]


def test_a_second_round_replaces_the_groups_that_compare_nothing() -> None:
    shop = shop_with(3)
    mesh, iteration = give_mesh(shop), Iteration(shop, STATE)
    state = iteration.run()
    assert [call.method for call in mesh.calls] == ["rollout", "rollout", "score", *["ppo_step"] * NUM_STEPS]
    assert prompts_of(mesh, "rollout") == [twice(40, 41, 42, 43), twice(44, 45, 46, 47)]
    assert prompts_of(mesh, "score") == [twice(41, 43, 45, 47)]
    samples = [call.rows.sample.tolist() for call in mesh.calls[:2]]
    assert samples == [list(range(80, 88)), list(range(88, 96))]
    assert state == dataclasses.replace(STATE, iteration=3, step=23, cursor=48, last_reward=state.last_reward)


def test_the_reward_is_of_all_that_was_drawn() -> None:
    shop = shop_with(3)
    give_mesh(shop)
    iteration = Iteration(shop, STATE)
    iteration.run()
    found, rewards = iteration.metrics(), iteration.rewards
    assert rewards is not None and len(rewards) == 2 * NUM_ROWS
    assert found.reward_mean == pytest.approx(float(rewards.mean()))
    assert found.differing == 0.5 and found.rollout_s == 2 * ROLLOUT_S


def test_without_further_rounds_all_is_learned_from() -> None:
    shop = shop_with(0)
    mesh = give_mesh(shop)
    assert Iteration(shop, STATE).run().cursor == 44
    assert prompts_of(mesh, "score") == [twice(40, 41, 42, 43)]


@pytest.mark.parametrize("breaks_at", [0, 1, 2, 4])
def test_a_round_that_was_drawn_is_not_drawn_again(breaks_at: int) -> None:
    shop = shop_with(3)
    whole, state = give_mesh(shop), Iteration(shop, STATE).run()
    before, iteration = give_mesh(shop, breaks_at), Iteration(shop, STATE)
    with pytest.raises(GenerationBroken):
        iteration.run()
    after = give_mesh(shop)
    assert iteration.run() == state
    methods = [call.method for call in whole.calls]
    assert [call.method for call in before.calls] + [call.method for call in after.calls] == methods
    assert prompts_of(before, "score") + prompts_of(after, "score") == prompts_of(whole, "score")
