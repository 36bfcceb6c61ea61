"""Has standbys try their devices together, two at a time, behind the training. Comes in: the pool, now and then; goes
out: an end, for good, of those whose all-reduce comes out wrong or does not come about.

Nobody waits for a trial: a standby that is wanted meanwhile takes its slot, and the trial counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray

from ftppo.clock import Clock
from ftppo.driver.announce import announce
from ftppo.driver.display import Display
from ftppo.driver.pool import Pool
from ftppo.driver.runfiles import RunFiles
from ftppo.plan.trials import Trials

GONE = "its process is gone"
AGAIN_S = 1.0  # from one trial to the next
SILENT = 3  # times the limit: meeting and adding up may take it once each, and who answers later than that hangs


@dataclass(frozen=True)
class _Running:
    pair: tuple[str, str]
    opened: Any  # reference to the meeting place, which the first of the pair hosts
    answers: tuple[Any, ...]  # references
    until: float  # monotonic


class StandbyTrials:
    """Those of a run."""

    def __init__(self, pool: Pool, files: RunFiles, display: Display, clock: Clock, limit_s: float) -> None:
        """`limit_s` is how long two may take to meet, and to add up."""
        self.pool, self.files, self.display, self.clock, self.limit_s = pool, files, display, clock, limit_s
        self._known = Trials()
        self._running: _Running | None = None
        self._num_begun, self._not_before = 0, 0.0
        shares = pool.cluster.kind == "cuda" and pool.config.cluster.gpus_per_actor < 1
        self._impossible = shares  # NCCL takes one process a GPU

    def tend(self) -> None:
        """Hear how the trial under way has ended, or begin one. Returns at once."""
        if self._running is None:
            self._begin()
            return
        running, now = self._running, self.clock.monotonic()
        _, late = ray.wait(list(running.answers), num_returns=len(running.answers), timeout=0.0)
        if late and now < running.until:
            return
        self._running, self._not_before = None, now + AGAIN_S
        if not set(running.pair) <= set(self.pool.warm):
            return  # one of them has a slot by now, or is gone
        if late:
            self._end_silent(running, set(late))
            return
        gone = [name for name, answer in zip(running.pair, running.answers, strict=True) if _has_died(answer)]
        if gone:
            for name in gone:
                self._end(name, GONE, for_good=False)
            return
        if any(_was_given_up(answer) for answer in running.answers):
            return  # somebody had other work: nothing is learned, and the pair may try again
        error = _error(running.answers)
        self._known = self._known.ended(running.pair, error is None)
        self.files.record("standbys_tried", f"{' with '.join(running.pair)}: {error or 'the sum is right'}")
        for name in self._known.bad():
            self._end(name, "an all-reduce with it fails, and not with others; its device is not used again")

    def _begin(self) -> None:
        if self._impossible or self.clock.monotonic() < self._not_before:
            return
        pair = self._known.next_pair(self.pool.promotable())
        if pair is None:
            return
        handles = [self.pool.members[name].handle for name in pair]
        self._num_begun += 1
        opened = handles[0].open_trial.remote(self._num_begun, self.limit_s)
        answers = tuple(
            handle.try_together.remote(opened, rank, len(pair), self.limit_s) for rank, handle in enumerate(handles)
        )
        self._running = _Running(pair, opened, answers, self.clock.monotonic() + SILENT * self.limit_s)

    def _end_silent(self, running: _Running, late: set[Any]) -> None:
        host_opened = bool(ray.wait([running.opened], timeout=0.0)[0])
        answers = dict(zip(running.pair, running.answers, strict=True))
        dead = [name for name, answer in answers.items() if answer not in late and _has_died(answer)]
        silent = [name for name, answer in answers.items() if answer in late] if host_opened else [running.pair[0]]
        for name in dead:
            self._end(name, GONE, for_good=False)
        for name in silent:
            why = f"no answer in {SILENT * self.limit_s:g} s to an all-reduce"
            # Who waits for one that is gone, or that is stuck itself, may be sound.
            blamed = not dead and len(silent) == 1
            self._end(name, f"{why}; its device is not used again" if blamed else why, for_good=blamed)

    def _end(self, name: str, why: str, for_good: bool = True) -> None:
        self.pool.retire(name, for_good)
        self._known = self._known.without([name])
        announce(self.files, self.display, "standby_failed", f"{name}: {why}")


def _has_died(answer: Any) -> bool:
    """Whether who was asked is gone; an error that it raised itself, as for want of the other one, is an answer."""
    error = _raised(answer)
    return isinstance(error, ray.exceptions.RayActorError) and not isinstance(error, ray.exceptions.RayTaskError)


def _was_given_up(answer: Any) -> bool:
    return isinstance(getattr(_raised(answer), "cause", None), InterruptedError)


def _raised(answer: Any) -> ray.exceptions.RayError | None:
    try:
        ray.get(answer)
    except ray.exceptions.RayError as error:
        return error
    return None


def _error(answers: Sequence[Any]) -> str | None:
    """What went wrong; None where nothing did."""
    try:
        return None if all(ray.get(list(answers))) else "a sum of whole numbers came out wrong"
    except ray.exceptions.RayError as error:
        return f"no all-reduce came about: {str(error).strip().splitlines()[-1]}"
