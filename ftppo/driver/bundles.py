"""The bundles that nobody holds. Comes in: bundles as they come free; goes out: those to start a standby in."""

from collections.abc import Collection, Iterable

from ftppo.clock import Clock

AGAIN_S = 10.0


class Bundles:
    """By their indices in the placement group, those that came free first in front."""

    def __init__(self, clock: Clock, free: Iterable[int] = ()) -> None:
        self._clock, self.free = clock, list(free)
        self._last_node: dict[int, str] = {}
        self._not_before = 0.0  # monotonic

    def give(self, bundle: int, node: str | None) -> None:
        """A bundle has come free; who held it was on this node, where that is known."""
        self.free.append(bundle)
        if node is not None:
            self._last_node[bundle] = node

    def node_of(self, bundle: int) -> str | None:
        """The node that it was last seen on; None where it was not."""
        return self._last_node.get(bundle)

    def rest(self) -> None:
        """What was started came to nothing, as on a node that is gone: the next is started some time later."""
        self._not_before = self._clock.monotonic() + AGAIN_S

    def take(self, num: int, apart_from: Collection[str]) -> list[int]:
        """Up to `num` bundles, none of which was last seen on one of these nodes."""
        if self._clock.monotonic() < self._not_before:
            return []
        found = [bundle for bundle in self.free if self._last_node.get(bundle) not in apart_from][: max(num, 0)]
        self.free = [bundle for bundle in self.free if bundle not in found]
        return found
