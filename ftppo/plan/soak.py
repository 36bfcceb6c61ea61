"""A script of faults drawn at random. Comes in: a Config; goes out: faults, the same for the same seeds.

Each strikes in a place that the run comes by: `save` only where a save is due, `nan` where gradients are made.
"""

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from ftppo.config import Config, Fault, FaultKind, FaultPhase
from ftppo.plan.chaos import ChaosSchedule, call_of
from ftppo.plan.retention import due

HANGS = frozenset({"sigstop", "gil_hang"})  # last until they are noticed, and ended
_GRADIENTS: tuple[FaultPhase, ...] = ("update", "update.forward", "update.backward", "update.reduce")


def schedule_of(config: Config) -> ChaosSchedule:
    """All faults of a run: those written down in `chaos.faults`, then those drawn."""
    return ChaosSchedule((*config.chaos.faults, *draw_faults(config)))


def draw_faults(config: Config) -> tuple[Fault, ...]:
    """`chaos.soak.num_faults` faults in the order of their iterations, all of which fit (config_check sees to it)."""
    soak = config.chaos.soak
    draw = random.Random(f"{config.seed}/soak/{soak.seed}")  # by text: the same on every machine
    iterations = _iterations(config, draw)
    return tuple(
        _fault(config, iteration, kind, draw) for iteration, kind in zip(iterations, _kinds(config, draw), strict=True)
    )


def _iterations(config: Config, draw: random.Random) -> list[int]:
    """When the faults strike, ascending and `min_gap` apart: drawn as if there were no gaps, which are added then."""
    soak = config.chaos.soak
    num_free = config.train.iterations - soak.first_iteration - max(0, soak.num_faults - 1) * soak.min_gap
    drawn = sorted(draw.randrange(num_free) for _ in range(soak.num_faults))
    return [soak.first_iteration + start + place * soak.min_gap for place, start in enumerate(drawn)]


def _kinds(config: Config, draw: random.Random) -> list[FaultKind]:
    """A kind for each fault, all about equally often, but for those that hang: these share their part."""
    soak = config.chaos.soak
    hangs = [kind for kind in soak.kinds if kind in HANGS]
    others = [kind for kind in soak.kinds if kind not in HANGS]
    num_hangs = round(soak.num_faults * soak.hang_share) if others else soak.num_faults
    num_hangs = num_hangs if hangs else 0
    found = [*_dealt(hangs, num_hangs, draw), *_dealt(others, soak.num_faults - num_hangs, draw)]
    draw.shuffle(found)
    return found


def _dealt[T](cards: Sequence[T], num: int, draw: random.Random) -> Iterator[T]:
    """`num` of `cards`, each in turn and in an order of its own, so that none comes twice before all have come once."""
    return itertools.islice(itertools.cycle(draw.sample(cards, len(cards))), num)


def _fault(config: Config, iteration: int, kind: FaultKind, draw: random.Random) -> Fault:
    calls = _calls(config, iteration, kind)
    phase = draw.choice(calls[draw.choice(sorted(calls))])
    slot = draw.randrange(config.parallel.num_slots)
    seconds = config.chaos.soak.slow_s if kind == "slow" else 0.0
    return Fault(iteration=iteration, phase=phase, slot=slot, kind=kind, seconds=seconds)


def _calls(config: Config, iteration: int, kind: FaultKind) -> Mapping[str, Sequence[FaultPhase]]:
    """The calls of this iteration that this kind can strike in, with the phases that are part of each.

    A call is drawn before a phase: else half of all faults would strike in an update, which has the most parts.
    """
    phases: Sequence[FaultPhase] = _GRADIENTS if kind == "nan" else get_args(FaultPhase)
    never = {"eval"}  # there may be none
    if config.snapshot.every_steps != 1:
        never.add("snapshot")  # the step that faults strike in may have none
    every = config.checkpoint.every_iterations
    if not due(iteration + 1, every, config.train.iterations):
        never.add("save")
    found: dict[str, list[FaultPhase]] = {}
    for phase in phases:
        if phase not in never:
            found.setdefault(call_of(phase), []).append(phase)
    return found
