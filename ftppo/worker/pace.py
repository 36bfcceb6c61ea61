"""How long a rank's own work in a step takes: up to where replicas first wait for each other, the gradient reduction.

Comes in: word of where a learner's gradients begin and where their reduction does; goes out: a Work, one a step. On
cuda the marks are events in the device's own queue, read after the step, when it has come by them: nothing waits.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from ftppo.plan.packing import Pack
from ftppo.types import Work
from ftppo.worker.device import Device

REDUCE = "reduce"  # the part of a step that ends a rank's own work


class Pace:
    """The marks of the step under way, and what the last one came to."""

    def __init__(self, device: Device) -> None:
        self._on_device = device.kind == "cuda"
        self._begun: Any = None  # a mark, while a learner's own work goes on
        self._spans: list[tuple[Any, Any]] = []  # marks, one pair a learner
        self._work: Work | None = None

    def over[T](self, learners: Iterable[T]) -> Iterator[T]:
        """Each of the learners of a step; its work begins when it is handed out."""
        self._spans = []
        for learner in learners:
            self._begun = self._mark()
            yield learner

    def watching(self, tick: Callable[[str], None]) -> Callable[[str], None]:
        """`tick`, heard on the way: it tells when a learner's own work is over."""

        def heard(part: str) -> None:
            if part == REDUCE and self._begun is not None:
                self._spans.append((self._begun, self._mark()))
                self._begun = None
            tick(part)

        return heard

    def end(self, packs: Sequence[Pack]) -> None:
        """The step on these micro-batches is over, on the device too."""
        seconds = sum(self._between(*span) for span in self._spans)
        self._work = Work(seconds, sum(len(pack.rows) * pack.width for pack in packs))

    def take(self) -> Work | None:
        """What the last step came to, once."""
        work, self._work = self._work, None
        return work

    def _mark(self) -> Any:
        if not self._on_device:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _between(self, begun: Any, ended: Any) -> float:
        return begun.elapsed_time(ended) / 1000 if self._on_device else ended - begun
