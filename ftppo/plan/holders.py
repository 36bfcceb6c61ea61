"""Who has a copy of what. Comes in: what living actors hold; goes out: the version to go back to, and from whom."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Common:
    """The newest version that every slot's state is held in, and an actor that holds it, by slot."""

    version: int
    holder: Mapping[int, str]


def newest_common(
    slots: Sequence[str],
    held: Mapping[str, Sequence[tuple[int, int]]],
    also: Sequence[int] = (),
    at_most: int | None = None,
    leaving: Collection[str] = (),
) -> Common | None:
    """The newest version of which every slot has a holder; None where there is no such version.

    `slots` are the actors of the slots, in order, the lost ones included. `held` is actor -> the (slot, version) it
    holds, for all that live. A slot's own actor is preferred; another one, or one that is `leaving`, must hold the
    versions `also` besides, and those leaving come last. What is newer than `at_most` does not count: whoever
    asks has not seen it happen.
    """
    by_slot: dict[int, dict[int, list[str]]] = {slot: {} for slot in range(len(slots))}
    for actor, tags in held.items():
        owned = set(tags)
        for slot, version in tags:
            own = slot < len(slots) and slots[slot] == actor and actor not in leaving
            if slot in by_slot and (own or all((slot, extra) in owned for extra in also)):
                by_slot[slot].setdefault(version, []).append(actor)
    everywhere = set.intersection(*(set(found) for found in by_slot.values())) - set(also)
    versions = {version for version in everywhere if at_most is None or version <= at_most}
    if not versions:
        return None
    version = max(versions)
    return Common(version, {slot: _choice(slots[slot], found[version], leaving) for slot, found in by_slot.items()})


def _choice(own: str, holders: Sequence[str], leaving: Collection[str]) -> str:
    return min(holders, key=lambda name: (name in leaving, name != own, name))
