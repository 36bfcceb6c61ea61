"""How far this rank has come, and where injected faults strike. Written by the working thread, read by others."""

import time
from collections.abc import Callable

from ftppo.types import Beacon


class Progress:
    """The rank's own beacon. Each move is one attribute store, so a reader never sees half of one."""

    def __init__(self) -> None:
        self.generation = 0
        self.slot = -1
        self.on_move: Callable[[str], None] = lambda phase: None
        self.flipped = False  # an injected fault wants a bit of the weights flipped
        self.poisoned = False  # an injected fault wants the gradients of this step spoilt
        self._place = ("idle", 0, 0, time.time())

    def join(self, generation: int, slot: int) -> None:
        """A generation begins for this rank, with nothing left of what was to go wrong in the one before."""
        self.generation, self.slot = generation, slot
        self.flipped = self.poisoned = False

    def enter(self, phase: str, step: int = 0) -> None:
        """A phase begins."""
        self._place = (phase, step, 0, time.time())

    def tick(self, part: str = "") -> None:
        """One more micro-batch, or one more token, of the phase; `part` says of which part of it."""
        phase, step, micro, _ = self._place
        self._place = (phase, step, micro + 1, time.time())
        self.on_move(f"{phase}.{part}" if part else phase)

    @property
    def phase(self) -> str:
        """The phase now."""
        return self._place[0]

    def read(self) -> Beacon:
        """A snapshot."""
        phase, step, micro, moved = self._place
        return Beacon(self.generation, self.slot, phase, step, micro, moved)
