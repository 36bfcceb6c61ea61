"""What answers are worth: task and reward model in their shares, each asked only where it counts."""

import pytest

from ftppo.config import Reward
from ftppo.driver.iteration import Iteration
from ftppo.driver.mesh import GenerationBroken
from tests.unit.driver.workbench import NUM_ROWS, NUM_STEPS, STATE, Counting, FakeMesh, give_mesh, workshop

MODEL = "/classifier"


class Never(Counting):
    """A task that must not be asked."""

    def scores(self, asked: object) -> list[float]:
        raise AssertionError("the task was asked")


def run(knobs: Reward) -> tuple[FakeMesh, Iteration]:
    shop, _ = workshop(reward=knobs)
    mesh, iteration = give_mesh(shop), Iteration(shop, STATE)
    iteration.run()
    return mesh, iteration


def rewards(knobs: Reward) -> list[float]:
    _, iteration = run(knobs)
    assert iteration.rewards is not None
    found: list[float] = iteration.rewards.tolist()
    return found


def test_both_count_by_their_weights() -> None:
    task = rewards(Reward())
    both = rewards(Reward(path=MODEL, coef=2.0, task_coef=0.5))
    model = [(value - 0.5 * score) / 2.0 for value, score in zip(both, task, strict=True)]
    assert model == pytest.approx(rewards(Reward(path=MODEL, task_coef=0.0)), abs=1e-4)
    assert len(set(model)) == NUM_ROWS


def test_the_model_is_asked_about_the_sequences_that_are_scored() -> None:
    assert [call.method for call in run(Reward())[0].calls] == ["rollout", "score", *["ppo_step"] * NUM_STEPS]
    mesh, _ = run(Reward(path=MODEL))
    assert [call.method for call in mesh.calls] == ["rollout", "reward", "score", *["ppo_step"] * NUM_STEPS]
    _, judged, scored, *_ = mesh.calls
    assert judged.phase == "score" and judged.rows.tokens.equal(scored.rows.tokens)


def test_a_task_without_weight_is_not_asked() -> None:
    shop, _ = workshop(reward=Reward(path=MODEL, task_coef=0.0))
    shop.task = Never()
    give_mesh(shop)
    Iteration(shop, STATE).run()


def test_answers_are_not_drawn_again_when_the_mesh_breaks_over_their_rewards() -> None:
    shop, _ = workshop(reward=Reward(path=MODEL))
    task, shop.task = shop.task, Never()
    before, iteration = give_mesh(shop, breaks_at=1), Iteration(shop, STATE)
    with pytest.raises(GenerationBroken):
        iteration.run()
    after, shop.task = give_mesh(shop), task
    iteration.run()
    whole, undisturbed = run(Reward(path=MODEL))
    methods = [call.method for call in before.calls + after.calls]
    assert methods == [call.method for call in whole.calls]
    assert iteration.rewards is not None and undisturbed.rewards is not None
    assert iteration.rewards.equal(undisturbed.rewards)
