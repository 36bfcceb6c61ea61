"""Which slots move to standbys between two steps. Comes in: who is to go, who had better; goes out: who goes now."""

from collections.abc import Collection, Mapping, Sequence


def going(
    told: Collection[int], better: Sequence[Collection[int]], num_warm: int, buddy_of: Mapping[int, int]
) -> list[int]:
    """The slots that move now, ascending; who is left over moves at the next boundary.

    `told` are slots that go in any case. Each of `better` are slots that go together, and only while there are warm
    standbys for all of them; the first come first. No slot goes together with the one that keeps its copy (`buddy_of`:
    slot -> who keeps its copy), so that nothing is lost.
    """
    wanted = set(told)
    for slots in better:
        if len(wanted.union(slots)) <= num_warm:
            wanted.update(slots)
    return _apart_from_buddies(sorted(wanted), buddy_of)


def _apart_from_buddies(slots: Sequence[int], buddy_of: Mapping[int, int]) -> list[int]:
    """Those of `slots` that neither keep the copy of one that comes before them, nor have theirs kept by one."""
    owner_of = {buddy: slot for slot, buddy in buddy_of.items()}
    found: set[int] = set()
    for slot in slots:
        if not found & {buddy_of.get(slot), owner_of.get(slot)}:
            found.add(slot)
    return sorted(found)
