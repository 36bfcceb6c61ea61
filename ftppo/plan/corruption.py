"""Whose weights are wrong. Comes in: every slot's checksum; goes out: who is odd, and who is in doubt."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ftppo.plan.topology import Layout


@dataclass(frozen=True)
class Verdict:
    """`odd` are outvoted by the other replicas of their part of the model; of `doubtful` ones any may be right."""

    odd: tuple[int, ...] = ()
    doubtful: tuple[int, ...] = ()


def compare(fingerprints: Sequence[int], layout: Layout) -> Verdict:
    """`fingerprints` are the slots', in their order. Slots that differ in dp and cp alone hold the same weights."""
    assert len(fingerprints) == layout.world, f"{len(fingerprints)} fingerprints of {layout.world} slots"
    replicas: dict[tuple[int, int], list[int]] = defaultdict(list)
    for slot in range(layout.world):
        at = layout.coordinate(slot)
        replicas[at.tp, at.pp].append(slot)
    odd, doubtful = [], []
    for slots in replicas.values():
        votes = Counter(fingerprints[slot] for slot in slots)
        winner, most = votes.most_common(1)[0]
        against = [slot for slot in slots if fingerprints[slot] != winner]
        if 2 * most > len(slots):
            odd += against
        else:
            doubtful += slots
    return Verdict(tuple(sorted(odd)), tuple(sorted(doubtful)))
