"""Every layout computes the same step: scores, losses, gradient norms, new weights, new moments."""

import dataclasses
import math

import pytest

from ftppo.driver.minibatch import mini_batch
from ftppo.plan.packing import by_length
from ftppo.plan.topology import Layout
from ftppo.types import StepResult, lengths_of
from tests.process import calls, case
from tests.process.case import LAYOUTS, ONE, difference
from tests.process.mesh import Mesh
from tests.process.outcome import Observe, Outcome, run_case

TOLERANCE = 1e-4  # float32, relative to the largest magnitude of a tensor


def test_the_problem_exercises_every_term(observe: Observe) -> None:
    one = observe(ONE)
    batch, result = one.batch, one.result
    log_ratio = one.scores.logprobs - batch.logprobs
    beyond_dual_clip = (log_ratio > math.log(1.5)) & (batch.advantages < 0) & batch.response.bool()
    assert beyond_dual_clip.sum() >= 3
    assert result.value_clip_fraction is not None and result.critic_grad_norm is not None
    assert 0.1 < result.clip_fraction < 0.9 and 0.1 < result.value_clip_fraction < 0.9
    assert difference(one.scores.ref_logprobs, one.scores.logprobs) > 0.01
    assert one.scores.values.abs().max() > 0.1
    assert result.entropy > 1 and result.policy_grad_norm > 0.1 and result.critic_grad_norm > 0.1
    assert not result.skipped and len(batch.response.sum(1).unique()) > 3


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts_agree(observe: Observe, layout: Layout) -> None:
    assert_equal_outcomes(observe(layout), observe(ONE))


@pytest.mark.parametrize("name", ["tp2", "tp2cp2", "dp2tp2pp2"])
def test_layouts_agree_with_sequence_parallelism(mesh: Mesh, observe: Observe, name: str) -> None:
    cut = case.config(LAYOUTS[name])
    cut = cut.model_copy(update={"parallel": cut.parallel.model_copy(update={"sequence_parallel": True})})
    assert_equal_outcomes(run_case(mesh, cut, observe(ONE).batch), observe(ONE))


@pytest.mark.parametrize("name", ["pp2", "tp2pp2"])
def test_layouts_agree_with_tied_embeddings(mesh: Mesh, name: str) -> None:
    tied = case.config(ONE).model.model_copy(update={"tie_embeddings": True})
    wanted = run_case(mesh, case.config(ONE, model=tied), None)
    assert "output_layer.weight" not in wanted.state, "the output has no weights of its own"
    assert_equal_outcomes(run_case(mesh, case.config(LAYOUTS[name], model=tied), wanted.batch), wanted)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
def test_layouts_agree_on_other_families(mesh: Mesh, family: str) -> None:
    model = case.config(ONE).model.model_copy(update={"family": family, "head_dim": 24, "vocab": calls.VOCAB - 7})
    wanted = run_case(mesh, case.config(ONE, model=model), None)
    found = run_case(mesh, case.config(LAYOUTS["tp2pp2"], model=model), wanted.batch)
    own = {"qwen2": "self_attention.linear_qkv.bias", "qwen3": "self_attention.q_layernorm.weight"}[family]
    assert wanted.state[f"optimizer.state.exp_avg.decoder.layers.{own}"].any()
    for outcome in (wanted, found):
        # A bias begins at 0: after one step of Adam it shows rounding, on a scale of its own. Its moments are compared.
        for role in ("", "critic."):
            outcome.state.pop(f"{role}decoder.layers.self_attention.linear_qkv.bias", None)
    assert_equal_outcomes(found, wanted)


@pytest.mark.parametrize("name", ["pp2", "tp2cp2", "dp2tp2pp2"])
def test_layouts_agree_without_a_critic(mesh: Mesh, name: str) -> None:
    algo = case.config(ONE).algo.model_copy(update={"advantage": "grpo"})
    wanted = run_case(mesh, case.config(ONE, algo=algo), None)
    assert not any("critic" in key for key in wanted.state) and not wanted.scores.values.any()
    assert (wanted.result.value_loss, wanted.result.critic_grad_norm) == (None, None)
    assert wanted.result.policy_grad_norm > 0.1 and wanted.batch.advantages.abs().max() > 0.1
    assert_equal_outcomes(run_case(mesh, case.config(LAYOUTS[name], algo=algo), wanted.batch), wanted)


@pytest.mark.parametrize("aggregate", ["seq_mean", "token_sum"])
def test_neither_layouts_nor_micro_batches_change_how_answers_count(
    mesh: Mesh, observe: Observe, aggregate: str
) -> None:
    one = case.config(ONE)
    algo = one.algo.model_copy(update={"aggregate": aggregate})
    wanted = run_case(mesh, case.config(ONE, algo=algo), observe(ONE).batch)
    assert wanted.result.policy_grad_norm != pytest.approx(observe(ONE).result.policy_grad_norm, rel=0.01)
    assert_equal_outcomes(run_case(mesh, case.config(LAYOUTS["dp2tp2pp2"], algo=algo), wanted.batch), wanted)
    train = one.train.model_copy(update={"micro_batch": 8})
    assert_equal_outcomes(run_case(mesh, case.config(ONE, algo=algo, train=train), wanted.batch), wanted)


@pytest.mark.parametrize("name", ["one", "pp2", "tp2cp2", "dp2tp2pp2"])
def test_micro_batches_by_length_change_nothing(mesh: Mesh, observe: Observe, name: str) -> None:
    layout = LAYOUTS.get(name, ONE)
    train = case.config(ONE).train.model_copy(update={"micro_tokens": 2 * case.SEQ, "mini_batch": case.NUM})
    config = case.config(layout, train=train)
    batch = mini_batch(observe(ONE).batch, 0, 0, config, layout.dp)
    widths = {pack.width for pack in by_length(lengths_of(batch.response), 2 * case.SEQ, config.length_unit)}
    assert len(widths) > 1 and min(widths) < case.SEQ
    found = run_case(mesh, config, batch)
    assert_equal_outcomes(found, observe(ONE))
    assert found.result.policy_loss == pytest.approx(observe(ONE).result.policy_loss, rel=1e-5, abs=1e-6)
    assert found.result.value_loss == pytest.approx(observe(ONE).result.value_loss, rel=1e-5)


def assert_equal_outcomes(found: Outcome, wanted: Outcome) -> None:
    for field in dataclasses.fields(wanted.scores):
        got, given = getattr(found.scores, field.name), getattr(wanted.scores, field.name)
        assert difference(got, given) < TOLERANCE, field.name
    assert scalars(found.result) == pytest.approx(scalars(wanted.result), rel=TOLERANCE, abs=1e-6)
    assert found.state.keys() == wanted.state.keys()
    apart = {key: difference(found.state[key], tensor) for key, tensor in wanted.state.items()}
    assert {key: by for key, by in apart.items() if by >= TOLERANCE} == {}


def scalars(result: StepResult) -> dict[str, float]:
    return {name: value for name, value in dataclasses.asdict(result).items() if value is not None}
