"""Which replica is slow. Comes in: what each slot took for its own work, step by step; goes out: each replica's share.

Ranks of one replica wait for each other within a step, so who of them is slow cannot be told: the replica is what can,
and where it is one slot, that slot. With one replica there is nothing to compare with.
"""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import median

from ftppo.plan.topology import Layout


def shares(paces: Sequence[Sequence[float]], layout: Layout) -> list[float]:
    """By replica: the time that it takes, as a multiple of what the others take, each by the median over the steps.

    `paces` holds for each step one number a slot, in any unit. What "the others" take is the median over them, without
    the replica itself: else of two replicas one could never take twice as long.
    """
    assert paces and layout.dp > 1, "nothing to compare"
    members = [layout.dp_replica(dp) for dp in range(layout.dp)]
    own = [median(max(step[slot] for slot in slots) for step in paces) for slots in members]
    ordered = sorted(own)
    return [pace / _median_without(ordered, pace) for pace in own]


def stragglers(shares: Sequence[float], ratio: float) -> list[int]:
    """The replicas whose share is over `ratio`, the slowest first; none where `ratio` is 0."""
    slow = [dp for dp, share in enumerate(shares) if ratio and share > ratio]
    return sorted(slow, key=lambda dp: -shares[dp])


def _median_without(ordered: Sequence[float], value: float) -> float:
    """The median of `ordered`, ascending, without one `value`."""
    place, num = bisect_left(ordered, value), len(ordered) - 1
    low, high = (ordered[index + (index >= place)] for index in ((num - 1) // 2, num // 2))
    return (low + high) / 2
