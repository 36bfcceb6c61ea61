"""Which standbys try an all-reduce together, and whose device is broken. Comes in: how trials ended; goes out: the next
pair, and the bad ones.

Of two that fail together nobody knows which is to blame, until one of them has done well with somebody else.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

type Pair = frozenset[str]


@dataclass(frozen=True)
class Trials:
    """What is known of the actors: who has done well with somebody, and which pairs have failed."""

    proven: frozenset[str] = frozenset()
    failed: frozenset[Pair] = frozenset()

    def next_pair(self, idle: Sequence[str]) -> tuple[str, str] | None:
        """Two of `idle` of whom something is to be learned, rather one with a proven partner; None where nothing is."""
        pairs = [
            (one, other)
            for one, other in itertools.combinations(idle, 2)
            if {one, other} - self.proven and frozenset((one, other)) not in self.failed
        ]
        return min(pairs, key=lambda pair: len({*pair} - self.proven), default=None)

    def ended(self, pair: tuple[str, str], right: bool) -> "Trials":
        """What is known once these two have tried."""
        if right:
            return replace(self, proven=self.proven.union(pair))
        return replace(self, failed=self.failed | {frozenset(pair)})

    def bad(self) -> list[str]:
        """Those that have failed with a partner that does well with another, and have done well with nobody."""
        found = {name for pair in self.failed for name in pair if name not in self.proven and pair & self.proven}
        return sorted(found)

    def without(self, names: Sequence[str]) -> "Trials":
        """The same, these forgotten."""
        gone = set(names)
        return Trials(self.proven - gone, frozenset(pair for pair in self.failed if not pair & gone))
