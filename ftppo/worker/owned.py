"""What of a rank's state its copies hold, and how it lies in them. Comes in: Parts; goes out: Flats and a table."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.reshard import table_of
from ftppo.checkpoint.snapshot import FROZEN, Flat
from ftppo.worker.model import Learner
from ftppo.worker.state import Part, counter_parts, optimizer_parts


@dataclass(frozen=True)
class Owned:
    """`moving` is this rank's shard of what steps change, `frozen` all that they do not."""

    moving: Sequence[Part]
    frozen: Sequence[Part]

    @cached_property
    def flats(self) -> tuple[Flat, Flat]:
        """The two, each as a run of bytes."""
        return Flat([part.piece.tensor for part in self.moving]), Flat([part.piece.tensor for part in self.frozen])

    @property
    def pieces(self) -> list[Piece]:
        """All of both."""
        return [part.piece for part in (*self.moving, *self.frozen)]

    def table(self, slot: int) -> bytes:
        """What slots of other layouts may take from the copies of `slot`, and where it is."""
        listed = []
        for kind, parts, flat in zip(("moving", FROZEN), (self.moving, self.frozen), self.flats, strict=True):
            spans = [(part.piece, span) for part, span in zip(parts, flat.spans, strict=True) if part.mine]
            listed.append((f"{slot}/{kind}", spans))
        return table_of(slot, listed)


def owned_of(learners: Sequence[Learner], frozen: Sequence[Part], slot: int) -> Owned:
    """A rank's: float32 weights, moments and step counts of all learners, and `frozen`."""
    moving = [
        part
        for learner in learners
        for part in (*optimizer_parts(learner, with_main=True), *counter_parts(learner, slot == 0))
    ]
    return Owned(moving, frozen)
