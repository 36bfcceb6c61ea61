"""The learning rate at the points where schedules go wrong: first and last step, end of warm-up, past the end."""

from typing import Any

import pytest

from ftppo.algo.schedule import learning_rate
from ftppo.config import Train


def _rates(num_steps: int, steps: list[int], **train: Any) -> list[float]:
    return [learning_rate(step, 2.0, num_steps, Train(**train)) for step in steps]


def test_constant_ignores_the_floor() -> None:
    assert _rates(10, [0, 5, 99], schedule="constant", min_lr_ratio=0.1) == [2.0, 2.0, 2.0]


def test_warmup_reaches_the_peak_at_its_last_step() -> None:
    assert _rates(10, [0, 1, 2, 3, 4], lr_warmup_steps=4) == [0.5, 1.0, 1.5, 2.0, 2.0]


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_decay(schedule: str) -> None:
    got = _rates(12, [2, 7, 12, 50], schedule=schedule, lr_warmup_steps=2, min_lr_ratio=0.5)
    assert got == pytest.approx([2.0, 1.5, 1.0, 1.0])


def test_the_curves_differ_between_their_ends() -> None:
    assert _rates(8, [2], schedule="linear") == pytest.approx([1.5])
    assert _rates(8, [2], schedule="cosine") == pytest.approx([1 + 2**0.5 / 2])


def test_warmup_as_long_as_the_run() -> None:
    assert _rates(4, [3, 4], schedule="linear", lr_warmup_steps=4) == [2.0, 2.0]
