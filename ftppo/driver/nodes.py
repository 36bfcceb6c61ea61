"""Which nodes are about to go. Comes in: what Ray's head has been told of them; goes out: their ids, and when they go.

A cloud's notice of preemption, the autoscaler and `ray drain-node` all tell the head, and it tells who asks.
"""

from collections.abc import Callable, Iterable, Mapping

from ray._private.state import state as _ray_state

from ftppo.clock import Clock

ASK_S = 1.0  # between two questions, of some tenths of a millisecond each


def _ask_ray() -> dict[str, int]:
    """Nodes that are draining -> when they go, in ms since the epoch; 0: that was not said. Ray has no public way."""
    return dict(_ray_state.get_draining_nodes())


class Nodes:
    """Asks Ray, but not at every step."""

    def __init__(self, clock: Clock, ask: Callable[[], Mapping[str, int]] = _ask_ray) -> None:
        self._clock, self._ask = clock, ask
        self._draining: dict[str, float | None] = {}
        self._not_before = clock.monotonic()

    def draining(self, ours: Iterable[str | None]) -> Mapping[str, float | None]:
        """Nodes that are about to go -> when, in seconds since the epoch; None where nobody has said.

        There are none where all of `ours` are: nobody could leave them for another one. None among those: not known.
        """
        now = self._clock.monotonic()
        if now >= self._not_before:
            self._not_before = now + ASK_S
            self._draining = {node: until_ms / 1000 or None for node, until_ms in self._ask().items()}
        if self._draining and all(node in self._draining for node in ours if node is not None):
            return {}
        return self._draining
