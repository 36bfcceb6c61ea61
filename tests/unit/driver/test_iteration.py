"""One iteration: its steps, the batches of each, and where the run stands afterwards."""

import dataclasses

import pytest
import torch

from ftppo.algo.kl import next_coef
from ftppo.config import Algo
from ftppo.driver.iteration import Iteration, warmup_step
from ftppo.rng import generator
from ftppo.types import DriverState, StepSpec
from tests.unit.driver.workbench import (
    NUM_ROWS,
    NUM_STEPS,
    ROLLOUT_S,
    SCORE_S,
    STATE,
    STEP,
    STEP_S,
    TOKENIZER,
    TRAIN,
    give_mesh,
    rows_of,
    run,
    same,
    workshop,
)


def test_an_iteration_has_epochs_times_mini_batches_steps() -> None:
    mesh, iteration, _ = run()
    assert [call.method for call in mesh.calls] == ["rollout", "score", *["ppo_step"] * NUM_STEPS]
    assert iteration.shop.num_steps == NUM_STEPS == TRAIN.epochs * NUM_ROWS // TRAIN.mini_batch
    specs = [call.spec for call in mesh.updates()]
    assert [spec.step for spec in specs if spec] == [17, 18, 19, 20, 21, 22]
    assert [spec.version for spec in specs if spec] == [19, 20, 21, 22, 23, 24]  # one more: the passage to PPO
    assert {(spec.iteration, spec.kind, spec.kl_coef) for spec in specs if spec} == {(2, "ppo", 0.5)}


def test_each_step_is_told_once_with_its_result() -> None:
    shop, steps = workshop()
    results = [dataclasses.replace(STEP, policy_loss=float(number)) for number in range(NUM_STEPS)]
    give_mesh(shop, results=results)
    Iteration(shop, STATE).run()
    assert [(spec.step, result.policy_loss) for spec, result in steps] == [(17 + i, float(i)) for i in range(NUM_STEPS)]


def test_every_epoch_takes_every_row_once_in_an_order_of_its_own() -> None:
    mesh, iteration, _ = run()
    assert iteration.batch is not None
    everything = sorted(tuple(row) for row in iteration.batch.tokens.tolist())
    assert len(set(everything)) == NUM_ROWS
    batches = rows_of(mesh.updates())
    epochs = [batches[0] + batches[1], batches[2] + batches[3], batches[4] + batches[5]]
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == TRAIN.epochs


def test_a_mini_batch_is_rows_of_the_whole_with_its_own_number_of_tokens() -> None:
    mesh, iteration, _ = run()
    assert iteration.batch is not None
    order = torch.randperm(NUM_ROWS, generator=generator(3, STATE.iteration, "shuffle", 0))
    for call, rows in zip(mesh.updates(), order.split(TRAIN.mini_batch), strict=False):
        for name in ("tokens", "response", "logprobs", "ref_logprobs", "values", "advantages", "returns"):
            assert torch.equal(getattr(call.rows, name), getattr(iteration.batch, name)[rows]), name
        assert call.rows.num_tokens == float(call.rows.response.sum())


def test_shuffles_hang_on_seed_and_iteration_and_nothing_else() -> None:
    first, again = run()[0], run()[0]
    assert same(first.updates(), again.updates())
    later = run(dataclasses.replace(STATE, iteration=3))[0]
    other = run(seed=4)[0]
    shuffles = {str(rows_of(mesh.updates())) for mesh in (first, later, other)}
    assert len(shuffles) == 3


def test_prompts_come_from_the_cursor_and_rewards_go_to_their_rows() -> None:
    mesh, iteration, _ = run()
    request = mesh.calls[0].rows
    asked = [TOKENIZER.decode(row[:length]) for row, length in zip(request.tokens, request.lengths, strict=True)]
    assert asked == [f"p{40 + number // 2}" for number in range(NUM_ROWS)]
    assert request.sample.tolist() == list(range(80, 88)) and request.iteration == STATE.iteration
    # every answer is as long as its sample says; bytes above 127 may join to fewer characters
    assert iteration.rewards is not None
    assert iteration.rewards.floor().tolist() == [40 + number // 2 for number in range(NUM_ROWS)]


def test_where_the_run_stands_afterwards() -> None:
    _, iteration, state = run()
    reward = iteration.stats["reward"]
    wanted = dataclasses.replace(STATE, iteration=3, step=23, cursor=44, last_reward=reward)
    assert state == wanted
    _, _, first = run(dataclasses.replace(STATE, first_reward=None))
    assert first.first_reward == first.last_reward == pytest.approx(reward)


def test_the_kl_coefficient_moves_at_the_end_and_only_then() -> None:
    algo = Algo(kl_coef=0.5, kl_target=0.1, kl_horizon=100.0)
    mesh, iteration, state = run(algo=algo)
    assert {call.spec.kl_coef for call in mesh.updates() if call.spec} == {0.5}
    assert iteration.metrics().kl_coef == 0.5
    assert iteration.stats["kl"] == pytest.approx(0.25)
    assert state.kl_coef == next_coef(0.5, iteration.stats["kl"], 0.1, 100.0, NUM_ROWS) > 0.5
    assert run(algo=Algo(kl_coef=0.5))[2].kl_coef == 0.5


def test_learning_rates_count_the_steps_of_ppo_alone() -> None:
    train = TRAIN.model_copy(update={"schedule": "linear", "policy_lr": 1.0, "critic_lr": 2.0})
    mesh, iteration, _ = run(train=train)
    total = TRAIN.iterations * NUM_STEPS
    for number, call in enumerate(mesh.updates()):
        assert call.spec is not None
        height = 1 - (STATE.step - STATE.warmup_done + number) / total
        assert call.spec.policy_lr == pytest.approx(height)
        assert call.spec.critic_lr == pytest.approx(2 * height)
    assert iteration.metrics().lr == pytest.approx(1 - 12 / total)


def test_metrics_are_means_over_the_steps_and_seconds_of_the_phases() -> None:
    shop, _ = workshop()
    results = [dataclasses.replace(STEP, policy_loss=float(number)) for number in range(NUM_STEPS)]
    give_mesh(shop, results=results)
    iteration = Iteration(shop, STATE)
    iteration.run()
    found = iteration.metrics()
    assert (found.iteration, found.step) == (2, 23)
    assert found.policy_loss == 2.5 and found.value_loss == 2.0 and found.entropy == 3.0
    assert (found.clip_fraction, found.policy_grad_norm, found.critic_grad_norm) == (0.5, 6.0, 7.0)
    assert (found.rollout_s, found.score_s, found.update_s) == (ROLLOUT_S, SCORE_S, NUM_STEPS * STEP_S)
    num_tokens = sum(1 + sample % 4 for sample in range(80, 88))
    assert found.tokens_per_s == num_tokens / (ROLLOUT_S + SCORE_S + NUM_STEPS * STEP_S)
    assert found.response_length == num_tokens / NUM_ROWS
    assert iteration.rewards is not None and found.reward_mean == pytest.approx(float(iteration.rewards.mean()))
    assert found.reward_std == pytest.approx(float(iteration.rewards.std(correction=0)))
    assert found.kl == pytest.approx(0.25)
    assert found.padding is not None and 0 < found.padding < 1
    assert found.update_tflops is not None and found.update_tflops > 0 and found.mfu is None


def test_phases_are_told_in_order_with_the_step() -> None:
    shop, _ = workshop()
    told: list[tuple[str, str]] = []
    shop.on_phase = lambda *what: told.append(what)
    give_mesh(shop)
    Iteration(shop, STATE).run()
    assert [phase for phase, _ in told] == ["rollout", "score", *["update"] * (1 + NUM_STEPS)]
    assert [detail for _, detail in told if detail] == [f"step {number}/{NUM_STEPS}" for number in range(1, 7)]


def test_the_share_of_prompts_whose_answers_differ_is_told_where_there_are_several() -> None:
    assert run()[1].metrics().differing == 1.0
    assert run(train=TRAIN.model_copy(update={"prompts": 8, "samples": 1}))[1].metrics().differing is None


def test_a_warm_up_step_moves_step_cursor_and_nothing_else() -> None:
    shop, steps = workshop()
    state = DriverState(step=1, cursor=3, warmup_done=1, kl_coef=0.5)
    mesh = give_mesh(shop)
    assert warmup_step(shop, state) == dataclasses.replace(state, step=2, cursor=6, warmup_done=2)
    (call,) = mesh.calls
    assert (call.method, call.phase) == ("warmup_step", "warmup")
    rate = TRAIN.warmup_lr
    assert call.spec == StepSpec(1, 0, "warmup", policy_lr=rate, critic_lr=rate, kl_coef=0.0, version=2)
    asked = [
        TOKENIZER.decode(row[mask == 0][:2]) for row, mask in zip(call.rows.tokens, call.rows.response, strict=True)
    ]
    assert asked == ["p3", "p4", "p5"]
    assert [spec for spec, _ in steps] == [call.spec]
