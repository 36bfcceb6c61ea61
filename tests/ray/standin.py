"""What real actors hold here instead of an Engine: it needs no models, and does as it is told."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ftppo.errors import StorageError
from ftppo.types import Sequences
from ftppo.worker.beacon import Progress

POLL_S = 0.02
LONGEST_S = 120.0  # nobody is held for longer


class StandIn:
    """Has of an Engine what TrainActor.call wants of one. Methods that name a slot concern that slot only."""

    def __init__(self, slot: int, generation: int) -> None:
        self.slot = slot
        self.progress = Progress()
        self.progress.slot, self.progress.generation = slot, generation
        self.memory, self.durable = SimpleNamespace(delivered=None), SimpleNamespace(idle=True)
        self.pace = SimpleNamespace(take=lambda: None)
        self.seen: Sequences | None = None

    def release(self) -> int:
        self.progress.enter("idle")
        return 0

    def whoami(self) -> int:
        return self.slot

    def echo(self, rows: Sequences) -> Sequences:
        self.seen = rows
        return rows

    def last_seen(self) -> list[int]:
        """The first token of each row of the last echo."""
        assert self.seen is not None
        return [int(token) for token in self.seen.tokens[:, 0]]

    def hold(self, slot: int, release: str) -> None:
        """Work that does not move until there is a file `release`."""
        if slot == self.slot:
            self.progress.enter("update", step=7)
            self._wait_for(Path(release))

    def crawl(self, slot: int, seconds: float) -> str:
        """Work that takes long but moves."""
        if slot == self.slot:
            self.progress.enter("update")
            for _ in range(round(seconds / POLL_S)):
                time.sleep(POLL_S)
                self.progress.tick()
        return "done"

    def fail(self, slot: int) -> None:
        if slot == self.slot:
            raise ValueError(f"slot {slot} divides by nothing")

    def refuse(self) -> None:
        raise StorageError("the bucket is gone")

    def _wait_for(self, path: Path) -> None:
        for _ in range(round(LONGEST_S / POLL_S)):
            if path.exists():
                return
            time.sleep(POLL_S)


def install(actor: Any, slot: int, generation: int) -> None:
    """Run inside a TrainActor: put a StandIn into it."""
    actor.engine, actor.generation, actor.broken = StandIn(slot, generation), generation, False
