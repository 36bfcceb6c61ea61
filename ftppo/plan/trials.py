"""Which standbys try an all-reduce together, and whose device is broken. Comes in: how trials ended; goes out: the next
pair, and the bad ones.

A pair that has failed tries again: a busy machine fails now and then, a broken device always. Of two that fail together
nobody knows which is to blame, until one of them has done well with somebody else.
"""

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

type Pair = frozenset[str]

ATTEMPTS = 2  # of a pair, of which none has gone well


@dataclass(frozen=True)
class Trials:
    """What is known of the actors: who has done well with somebody, and how often pairs have failed."""

    proven: frozenset[str] = frozenset()
    failed: Mapping[Pair, int] = field(default_factory=dict)

    def next_pair(self, idle: Sequence[str]) -> tuple[str, str] | None:
        """Two of `idle` of whom something is to be learned, rather one with a proven partner; None where nothing is."""
        pairs = [
            (one, other)
            for one, other in itertools.combinations(idle, 2)
            if {one, other} - self.proven and self.failed.get(frozenset((one, other)), 0) < ATTEMPTS
        ]
        return min(pairs, key=lambda pair: len({*pair} - self.proven), default=None)

    def ended(self, pair: tuple[str, str], right: bool) -> "Trials":
        """What is known once these two have tried."""
        if right:
            return replace(self, proven=self.proven.union(pair))
        return replace(self, failed=Counter(self.failed) + Counter([frozenset(pair)]))

    def bad(self) -> list[str]:
        """Those that keep failing with a partner that does well with another, and have done well with nobody."""
        pairs = [pair for pair, times in self.failed.items() if times >= ATTEMPTS and pair & self.proven]
        return sorted({name for pair in pairs for name in pair if name not in self.proven})

    def without(self, names: Sequence[str]) -> "Trials":
        """The same, these forgotten."""
        gone = set(names)
        return Trials(self.proven - gone, {pair: times for pair, times in self.failed.items() if not pair & gone})
