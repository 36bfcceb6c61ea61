"""A rank's snapshots: its own copy and its buddy's. Comes in: the version of the weights; goes out: copies.

A copy is made after a step, in host memory, and taken to the buddy while the next step computes.
"""

from ftppo.checkpoint.exchange import Address, Courier, Exchange, fetch
from ftppo.checkpoint.snapshot import FROZEN, Flat, Holdings, Tag


class Memory:
    """What one actor holds. `address` is where other actors find it."""

    def __init__(self, token: str, host: str, timeout_s: float) -> None:
        self._token, self._timeout_s = token, timeout_s
        self.holdings = Holdings()
        self._exchange = Exchange(self.holdings, token, host, timeout_s)
        self.address = self._exchange.address
        self._courier: Courier | None = None
        self._slot = -1

    def attach(self, slot: int, moving: Flat, frozen: Flat) -> None:
        """Speak for `slot`, whose state is `moving` and, never changing in PPO, `frozen`."""
        self._slot, self._moving, self._frozen = slot, moving, frozen

    def join(self, generation: int, buddy: Address | None) -> None:
        """Send to `buddy` from now on, and take nothing from earlier generations."""
        self._exchange.generation = generation
        if self._courier is not None:
            self._courier.close()
        self._courier = Courier(self._token, generation, buddy, self._timeout_s) if buddy is not None else None

    def take(self, version: int, every: int = 1) -> None:
        """Copy the state, and have the copy taken to the buddy. Copies come `every` so many versions."""
        self._send(Tag(self._slot, version), self._moving)
        # Ranks are never more than a version apart: what is older than the last two is of a slot backed by others now.
        self.holdings.drop_stale(version - 2 * every)

    def freeze(self) -> None:
        """Copy what does not change any more."""
        if self._frozen.num_bytes:
            self._send(Tag(self._slot, FROZEN), self._frozen)

    def restore(self, version: int, source: Address | None) -> None:
        """Fill the state with `version`: from the own copy, or from `source`. Raises CheckpointError."""
        if source is not None:
            self._fetch(Tag(self._slot, version), source)
            if self._frozen.num_bytes:
                self._fetch(Tag(self._slot, FROZEN), source)
                self._unpack(Tag(self._slot, FROZEN), self._frozen)
        self.holdings.forget(newer_than=version)
        self._unpack(Tag(self._slot, version), self._moving)

    @property
    def delivered(self) -> int | None:
        """The newest version that the buddy is known to hold; None where there is none, or no buddy."""
        return self._courier.delivered.get(self._slot) if self._courier is not None else None

    def settle(self) -> None:
        """Wait until nothing is on its way to the buddy."""
        if self._courier is not None:
            self._courier.settle()

    def close(self) -> None:
        """Send and serve no more. Leaves no thread and no socket."""
        if self._courier is not None:
            self._courier.close()
            self._courier.settle()
            self._courier = None
        self._exchange.close()

    def _send(self, tag: Tag, flat: Flat) -> None:
        self.settle()  # the buffer that is filled now may be the one that was on its way
        buffer = self.holdings.blank(flat.num_bytes)
        flat.pack(buffer)
        self.holdings.put(tag, buffer)
        if self._courier is not None:
            self._courier.send(tag, buffer)

    def _fetch(self, tag: Tag, source: Address) -> None:
        self.holdings.put(tag, fetch(self._token, self._exchange.generation, source, tag, self._timeout_s))

    def _unpack(self, tag: Tag, flat: Flat) -> None:
        held = self.holdings.get(tag)
        assert held is not None, f"no copy of {tag}: the driver asked for what was not offered"
        flat.unpack(held)
