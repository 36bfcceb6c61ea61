"""A rank's own work is what it does before the reduction of each learner's gradients, and nothing else."""

import pytest
import torch

from ftppo.plan.packing import Pack
from ftppo.types import Work
from ftppo.worker import pace
from ftppo.worker.device import Device
from ftppo.worker.pace import Pace

PACKS = [Pack((0, 1), 8), Pack((2,), 5)]


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.at = 0.0

    def perf_counter(self) -> float:
        return self.at


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    own = Clock()
    monkeypatch.setattr(pace, "time", own)
    return own


def test_a_step_is_its_learners_work_without_their_reductions(clock: Clock) -> None:
    own, ticks = Pace(Device("cpu", torch.float32)), list[str]()
    tick = own.watching(ticks.append)
    for _ in own.over(["policy", "critic"]):
        for part, seconds in (("forward", 1.0), ("backward", 2.0), ("reduce", 50.0)):
            tick(part)
            clock.at += seconds
    own.end(PACKS)
    assert own.take() == Work(6.0, 21)
    assert own.take() is None, "an answer that is no step's tells of none"
    assert ticks == ["forward", "backward", "reduce"] * 2


def test_what_a_broken_step_has_left_does_not_count(clock: Clock) -> None:
    own = Pace(Device("cpu", torch.float32))
    tick = own.watching(lambda part: None)
    for _ in own.over(["policy", "critic"]):
        tick("reduce")
        clock.at += 7.0
        break
    tick("reduce")  # as of a step that is not measured
    for _ in own.over(["policy"]):
        clock.at += 1.0
        tick("reduce")
    own.end(PACKS)
    assert own.take() == Work(1.0, 21)
