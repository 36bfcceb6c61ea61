"""Tokens by the inverse of the distribution function, among those that top-k and top-p keep; who gets which number."""

import dataclasses
import math

import pytest
import torch
from torch import Tensor

from ftppo.types import RolloutRequest
from ftppo.worker.draw import draw, uniforms

LARGEST = 1 - 1e-16  # rounds to the float64 before 1
PROBABILITIES = [0.0, 0.5, 0.0, 0.125, 0.25, 0.125, 0.0]  # sums of these are exact


def drawn(probabilities: list[float], numbers: list[float], top_k: int = 0, top_p: float = 1.0) -> list[int]:
    logits = torch.tensor([probabilities] * len(numbers)).log()
    return draw(logits, torch.tensor(numbers, dtype=torch.float64), 1.0, top_k, top_p)[0].tolist()


def reachable(probabilities: list[float], **filters: float) -> set[int]:
    numbers = [*torch.linspace(0, 1, 1000, dtype=torch.float64)[:-1].tolist(), LARGEST]
    return set(drawn(probabilities, numbers, **filters))  # type: ignore[arg-type]


def test_a_token_is_drawn_where_the_distribution_function_passes_the_number() -> None:
    numbers = [0.0, 0.25, 0.499, 0.501, 0.62, 0.63, 0.87, 0.88, 0.99]
    assert drawn(PROBABILITIES, numbers) == [1, 1, 1, 3, 3, 4, 4, 5, 5]


@pytest.mark.parametrize("number", [0.0, 5e-324, 1e-17, 0.5, 1 - 1e-12, LARGEST, 1.0])  # 1.0: by rounding
def test_what_has_no_weight_is_never_drawn(number: float) -> None:
    assert PROBABILITIES[drawn(PROBABILITIES, [number])[0]] > 0
    assert drawn([0.0, 0.0, 1.0], [number]) == [2]
    assert drawn([1.0, 0.0, 0.0], [number]) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_edges_hold_for_large_vocabularies(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = 20 * torch.randn(1, 5000, generator=generator)
    kept = torch.rand(1, 5000, generator=generator) < 0.5
    logits = logits.masked_fill(~kept, -math.inf)
    for number in (0.0, LARGEST, 1.0):
        token = draw(logits, torch.tensor([number], dtype=torch.float64), 1.0, 0, 1.0)[0]
        assert kept[0, token]


def test_frequencies_are_the_probabilities() -> None:
    numbers = torch.rand(20000, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).tolist()
    counts = torch.tensor(drawn([0.1, 0.2, 0.3, 0.4], numbers)).bincount() / len(numbers)
    assert torch.allclose(counts, torch.tensor([0.1, 0.2, 0.3, 0.4]), atol=0.015)


@pytest.mark.parametrize(
    ("top_k", "kept"),
    [(0, {1, 3, 4, 5}), (1, {1}), (2, {1, 4}), (3, {1, 3, 4, 5}), (4, {1, 3, 4, 5}), (7, {1, 3, 4, 5})],
)
def test_top_k_keeps_the_likeliest_and_what_equals_the_last(top_k: int, kept: set[int]) -> None:
    assert reachable(PROBABILITIES, top_k=top_k) == kept


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [(1e-9, {1}), (0.49, {1}), (0.51, {1, 4}), (0.74, {1, 4}), (0.76, {1, 3, 4}), (0.99, {1, 3, 4, 5})],
)
def test_top_p_keeps_the_smallest_set_that_holds_it(top_p: float, kept: set[int]) -> None:
    assert reachable(PROBABILITIES, top_p=top_p) == kept


def test_top_p_is_of_what_top_k_leaves() -> None:
    assert reachable([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.6) == {0, 1}
    assert reachable([0.4, 0.3, 0.2, 0.1], top_k=2, top_p=0.5) == {0}


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_the_logprob_is_of_the_tempered_whole_distribution(temperature: float) -> None:
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    number = torch.rand(50, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    token, logprob = draw(logits, number, temperature, 3, 0.8)
    wanted = (logits / temperature).log_softmax(-1)[torch.arange(50), token]
    assert token.dtype == torch.int64 and torch.allclose(logprob, wanted)


def test_temperature_zero_takes_the_likeliest_with_its_logprob_at_one() -> None:
    logits = torch.randn(50, 11, generator=torch.Generator().manual_seed(0))
    token, logprob = draw(logits, torch.full((50,), LARGEST, dtype=torch.float64), 0.0, 0, 1.0)
    assert torch.equal(token, logits.argmax(-1)) and torch.allclose(logprob, logits.log_softmax(-1).amax(-1))


def request(samples: list[int], iteration: int = 0) -> RolloutRequest:
    num = len(samples)
    return RolloutRequest(
        iteration, torch.zeros(num, 4, dtype=torch.int64), torch.full((num,), 2), torch.tensor(samples)
    )


def test_numbers_hang_on_seed_iteration_sample_and_place_alone() -> None:
    base = uniforms(request([7, 8, 9]), 5, seed=0)
    assert base.shape == (3, 5) and base.dtype == torch.float64 and ((base >= 0) & (base < 1)).all()
    assert len(base.unique()) == base.numel()
    other_prompt = dataclasses.replace(request([9, 7]), tokens=torch.ones(2, 9, dtype=torch.int64))
    assert torch.equal(uniforms(other_prompt, 5, seed=0), base[[2, 0]])
    assert torch.equal(uniforms(request([7, 8, 9]), 3, seed=0), base[:, :3])


def test_seed_and_iteration_change_every_number() -> None:
    base = uniforms(request([7, 8]), 5, seed=0)
    assert not_equal(uniforms(request([7, 8]), 5, seed=1), base)
    assert not_equal(uniforms(request([7, 8], iteration=1), 5, seed=0), base)


def not_equal(found: Tensor, other: Tensor) -> bool:
    return bool((found != other).all())
