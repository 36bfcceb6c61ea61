"""Who holds which slot. Comes in: a layout and actor ids; goes out: frozen rosters, one a generation."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ftppo.plan.topology import Layout


@dataclass(frozen=True)
class Roster:
    """The actor of each slot and those standing by. Actor ids are unique over both.

    Standbys come and go within a generation; a change of slots begins the next one.
    """

    generation: int
    layout: Layout
    slots: tuple[str, ...]
    standby: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        assert self.generation >= 0, f"generation {self.generation}"
        assert len(self.slots) == self.layout.world, f"{len(self.slots)} actors for layout {self.layout}"
        assert len({*self.actors}) == len(self.actors), "an actor is named twice"

    @property
    def actors(self) -> tuple[str, ...]:
        """All actors: those of the slots in order, then the standbys."""
        return self.slots + self.standby

    def actor(self, slot: int) -> str:
        """Who holds `slot`."""
        assert 0 <= slot < len(self.slots), f"slot {slot} of layout {self.layout}"
        return self.slots[slot]

    def slot_of(self, actor: str) -> int | None:
        """The slot that `actor` holds; None where it stands by or is not of this roster."""
        return self._slot_of.get(actor)

    def stands_by(self, actor: str) -> bool:
        """Whether `actor` is a standby."""
        return actor in self._standing_by

    def replace(self, takers: Mapping[int, str]) -> "Roster":
        """The next generation: that standby takes each slot in `takers`, and who held it leaves. Empty: nobody does."""
        slots = list(self.slots)
        for slot, actor in takers.items():
            assert 0 <= slot < len(slots), f"slot {slot} of layout {self.layout}"
            assert self.stands_by(actor), f"{actor} does not stand by"
            slots[slot] = actor
        taken = set(takers.values())
        assert len(taken) == len(takers), "one standby for two slots"
        standby = tuple(actor for actor in self.standby if actor not in taken)
        return Roster(self.generation + 1, self.layout, tuple(slots), standby)

    def reshape(self, layout: Layout, slots: Sequence[str], standby: Sequence[str]) -> "Roster":
        """The next generation in another layout."""
        return Roster(self.generation + 1, layout, tuple(slots), tuple(standby))

    def with_standby(self, actors: Sequence[str]) -> "Roster":
        """The same generation with `actors` standing by after the others."""
        return dataclasses.replace(self, standby=self.standby + tuple(actors))

    def without_standby(self, actors: Collection[str]) -> "Roster":
        """The same generation without these standbys; who does not stand by is passed over."""
        gone = set(actors)
        return dataclasses.replace(self, standby=tuple(actor for actor in self.standby if actor not in gone))

    @cached_property
    def _slot_of(self) -> dict[str, int]:
        return {actor: slot for slot, actor in enumerate(self.slots)}

    @cached_property
    def _standing_by(self) -> frozenset[str]:
        return frozenset(self.standby)
