"""A rank's snapshots: its own copy and its buddy's. Comes in: the version of the weights; goes out: copies.

A copy is made after a step, in host memory, and taken to the buddy while the next step computes.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ftppo.checkpoint.exchange import Address, Courier, Exchange, fetch
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.reshard import fill
from ftppo.checkpoint.shared import SharedBuffer
from ftppo.checkpoint.snapshot import FROZEN, TABLE, Buffer, Flat, Holdings, Tag
from ftppo.errors import CheckpointError


class Memory:
    """What one actor holds. `address` is where other actors find it."""

    def __init__(self, token: str, host: str, timeout_s: float) -> None:
        self._token, self._timeout_s = token, timeout_s
        self.holdings = Holdings()
        self._exchange = Exchange(self.holdings, token, host, timeout_s)
        self.address = self._exchange.address
        self._courier: Courier | None = None
        self._layout, self._slot = "", -1

    def attach(self, layout: str, slot: int, moving: Flat, frozen: Flat, table: bytes) -> None:
        """Speak for `slot`, whose state is `moving` and, never changing in PPO, `frozen`; `table` tells what is where.

        Copies of the slot held before stay.
        """
        self._layout, self._slot = layout, slot
        self._moving, self._frozen = moving, frozen
        self._table = np.frombuffer(table, dtype=np.uint8)
        self._blank = True  # nothing was put into that state yet, as far as is known here

    def join(self, generation: int, buddy: Address | None) -> None:
        """Send to `buddy` from now on, and take nothing from earlier generations."""
        self._exchange.generation = generation
        if self._courier is not None:
            self._courier.close()
        self._courier = Courier(self._token, generation, buddy, self._timeout_s) if buddy is not None else None

    def take(self, version: int, every: int = 1) -> None:
        """Copy the state, and have the copy taken to the buddy. Copies come `every` so many versions."""
        self._copy(self._tag(version), self._moving)
        # Ranks are never more than a version apart: what is older than the last two is of a slot backed by others now.
        self.holdings.drop_stale(version - 2 * every)

    def secure(self, version: int, every: int) -> None:
        """See that the state, which is at `version`, is copied, and wait until the buddy has the copy."""
        if self.holdings.get(self._tag(version)) is None:
            self.take(version, every)
        self.settle()

    def freeze(self) -> None:
        """Copy what does not change any more."""
        self._blank = False
        self._send(self._tag(TABLE), self._table)
        if self._frozen.num_bytes:
            self._copy(self._tag(FROZEN), self._frozen)

    def restore(self, version: int, source: Address | None) -> None:
        """Fill the state with `version`: from the own copy, or from `source`. Raises CheckpointError."""
        if source is not None:
            self._fetch(self._tag(version), source)
            if self._frozen.num_bytes:
                self._fetch(self._tag(FROZEN), source)
        self.holdings.forget(newer_than=version)
        self._unpack(self._tag(version), self._moving)
        if self._frozen.num_bytes and (self._blank or source is not None):
            self._unpack(self._tag(FROZEN), self._frozen)
        self._blank = False

    def reshard(self, pieces: Sequence[Piece], version: int, layout: str, sources: Mapping[int, Address]) -> int:
        """Fill `pieces` with `version` as the slots of another layout copied it; `sources` says who has each one's.

        Returns the bytes read. Raises CheckpointError.
        """

        def read(slot: int, kind: int, part: tuple[int, int] | None = None) -> Buffer:
            tag = Tag(slot, kind, layout)
            held = self.holdings.get(tag)
            if held is None:
                return fetch(self._token, self._exchange.generation, sources[slot], tag, self._timeout_s, part)
            return held if part is None else held[part[0] : sum(part)]

        def read_object(name: str, start: int, length: int) -> Buffer:
            slot, _, kind = name.partition("/")
            return read(int(slot), FROZEN if kind == str(FROZEN) else version, (start, length))

        self.holdings.forget(newer_than=version)
        return fill(pieces, [read(slot, TABLE).tobytes() for slot in sorted(sources)], read_object)

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

    def _tag(self, version: int) -> Tag:
        return Tag(self._slot, version, self._layout)

    def _copy(self, tag: Tag, flat: Flat) -> None:
        self.settle()  # the buffer that is filled now may be the one that was on its way
        buffer = self.holdings.blank(flat.num_bytes, shared=self._courier is not None)
        flat.pack(buffer)
        if isinstance(buffer, SharedBuffer):
            buffer.seal()
        self._send(tag, buffer)

    def _send(self, tag: Tag, buffer: Buffer) -> None:
        self.holdings.put(tag, buffer)
        if self._courier is not None:
            self._courier.send(tag, buffer)

    def _fetch(self, tag: Tag, source: Address) -> None:
        self.holdings.put(tag, fetch(self._token, self._exchange.generation, source, tag, self._timeout_s))

    def _unpack(self, tag: Tag, flat: Flat) -> None:
        held = self.holdings.get(tag)
        if held is None:
            raise CheckpointError(f"no sound copy of {tag} is left")
        flat.unpack(held)
