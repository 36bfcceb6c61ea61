"""Samples are the same in every layout, whatever their neighbours, with the log-probabilities that training sees."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from ftppo.driver.prompts import assemble
from ftppo.plan.topology import Layout
from ftppo.types import RolloutResult
from tests.process import calls, case
from tests.process.case import LAYOUTS, ONE
from tests.process.mesh import Mesh
from tests.process.outcome import Observe
from tests.process.world import World

type Sample = Callable[..., RolloutResult]

EVERYWHERE = {"one": ONE, **LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_samples_are_equal_in_every_layout(observe: Observe, layout: Layout) -> None:
    found, wanted = observe(layout).samples, observe(ONE).samples
    assert torch.equal(found.tokens, wanted.tokens)
    assert torch.equal(found.lengths, wanted.lengths)
    assert torch.allclose(found.logprobs, wanted.logprobs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("layout", EVERYWHERE.values(), ids=EVERYWHERE.keys())
def test_training_sees_the_logprobs_of_the_draw(observe: Observe, layout: Layout) -> None:
    samples, scores = observe(layout).samples, observe(layout).sampled
    request = case.request()
    response = assemble(request, samples, calls.PAD, case.config(ONE).rollout).response.bool()
    drawn = samples.logprobs[torch.arange(case.RESPONSE) < samples.lengths[:, None]]
    assert drawn.max() < 0
    assert torch.allclose(scores.logprobs[response], drawn, rtol=0, atol=1e-4)
    assert not scores.logprobs[~response].any()


def test_the_end_token_stops_and_is_counted(observe: Observe) -> None:
    samples = observe(ONE).samples
    stopped = (samples.tokens == calls.EOS).any(1)
    assert stopped.any() and not stopped.all() and len(samples.lengths.unique()) > 2
    for tokens, logprobs, length in zip(samples.tokens, samples.logprobs, samples.lengths.tolist(), strict=True):
        ends = (tokens == calls.EOS).nonzero().flatten().tolist()
        assert ends == ([length - 1] if ends else []) and (ends or length == case.RESPONSE)
        assert not tokens[length:].any() and not logprobs[length:].any()


@pytest.fixture(scope="module")
def sample(mesh: Mesh) -> Iterator[Sample]:
    """sample(request, seed=0, **rollout): what one rank draws under these settings."""
    config = case.config(ONE)
    with World(mesh, config) as world:

        def drawn(request: Any, seed: int = 0, **settings: Any) -> RolloutResult:
            rollout = config.rollout.model_copy(update=settings)
            mesh.run([0], calls.with_config, config.model_copy(update={"seed": seed, "rollout": rollout}))
            return world.rollout(request)

        yield drawn


def test_a_sample_depends_on_its_number_alone(sample: Sample) -> None:
    request = case.request()
    whole, order = sample(request), torch.randperm(case.NUM, generator=torch.Generator().manual_seed(1))
    for batch in (64, 3, 1):  # who shares the batch, and so who is left when others have ended
        shuffled = sample(request.rows(order), batch=batch)
        assert torch.equal(shuffled.tokens, whole.tokens[order]) and torch.equal(shuffled.lengths, whole.lengths[order])
        assert torch.allclose(shuffled.logprobs, whole.logprobs[order], rtol=0, atol=1e-5)


def test_seed_iteration_and_number_each_change_the_sample(sample: Sample) -> None:
    request = case.request()
    base = sample(request).tokens
    others = [
        sample(request, seed=1),
        sample(dataclasses.replace(request, iteration=1)),
        sample(dataclasses.replace(request, sample=request.sample + 1000)),
    ]
    assert all((other.tokens != base).any(1).sum() >= case.NUM - 1 for other in others)


def test_greedy_settings_agree_and_ignore_the_seed(sample: Sample) -> None:
    request = case.request()
    greedy = sample(request, temperature=0)
    for settings in ({"temperature": 0, "seed": 1}, {"top_k": 1, "seed": 2}, {"top_p": 1e-6, "seed": 3}):
        assert torch.equal(sample(request, **settings).tokens, greedy.tokens)
    assert not torch.equal(sample(request).tokens, greedy.tokens)


def test_logprobs_are_of_the_whole_distribution_at_its_temperature(sample: Sample) -> None:
    request = case.request()
    cool, narrow = sample(request, temperature=0.5, top_k=1), sample(request, temperature=1.0, top_k=1)
    assert torch.equal(cool.tokens, narrow.tokens)
    counted = torch.arange(case.RESPONSE) < cool.lengths[:, None]
    assert (narrow.logprobs[counted] < 0).all() and (cool.logprobs[counted] > narrow.logprobs[counted]).all()
