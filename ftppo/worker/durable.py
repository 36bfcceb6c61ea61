"""A rank's part of a durable checkpoint. Comes in: Parts; goes out: a Written, or filled tensors.

Each rank writes and reads alone, without collectives; slot 0 publishes once the driver has seen all succeed. All of it
goes on behind the training, but for the wait for the copy.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from typing import Any

from ftppo.checkpoint.catalog import Catalog
from ftppo.checkpoint.index import ShardRecord
from ftppo.checkpoint.manifest import Header, Manifest
from ftppo.checkpoint.pieces import Piece
from ftppo.checkpoint.publish import publish
from ftppo.checkpoint.shards import read_shards, write_shards
from ftppo.checkpoint.stores import make_retrier, retrying_store_of, store_of
from ftppo.config import Checkpoint
from ftppo.errors import CheckpointError
from ftppo.types import Written
from ftppo.worker.state import Part


class Durable:
    """Saves and loads the state of one slot."""

    def __init__(self, knobs: Checkpoint, slot: int, parts: Sequence[Part]) -> None:
        self.knobs, self.slot, self.parts = knobs, slot, parts
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="save")
        self._copying: Future[list[Piece]] | None = None
        self._saving: Future[bytes] | None = None
        self._publishing: Future[Manifest] | None = None
        self._attempt: str | None = None  # the one that may be published
        self._stalled_s = 0.0

    def begin(self, prefix: str) -> None:
        """Start to write what this rank is to write into the attempt's folder; training may go on at once.

        What is written is a copy on the host, made beside the training too: whoever changes the state calls `settle`
        first. A save still on its way is waited for: there is one at a time.
        """
        self._wait()
        pieces, self._stalled_s = [part.piece for part in self.parts if part.mine], 0.0
        self._copying = self._thread.submit(_copies, pieces)
        self._saving = self._thread.submit(self._write, prefix, self._copying)

    def settle(self) -> None:
        """Wait until a save that has begun does not need the state any more, for that is about to change."""
        if self._copying is not None:
            started = time.monotonic()
            wait([self._copying])  # where it has failed, `end` says so
            self._copying, self._stalled_s = None, self._stalled_s + time.monotonic() - started

    def end(self) -> Written:
        """What the save begun last has written, once it has. Raises StorageError."""
        assert self._saving is not None, "no save was begun"
        saving, self._saving, self._copying = self._saving, None, None
        return Written(saving.result(), self._stalled_s)

    @property
    def idle(self) -> bool:
        """Whether nothing is being written or published."""
        return all(future is None or future.done() for future in (self._saving, self._publishing))

    def begin_publish(self, header: Header, written: Sequence[Written], num_writers: int) -> None:
        """Begin to make what all ranks have written a checkpoint. One rank does it."""
        self._attempt = header.uid
        self._publishing = self._thread.submit(self._publish, header, written, num_writers)

    def end_publish(self) -> Manifest | None:
        """What was to be published, once it is; None where there was nothing. Raises CheckpointError, StorageError."""
        publishing, self._publishing = self._publishing, None
        return publishing.result() if publishing is not None else None

    def abandon(self) -> None:
        """The generation is over: nothing that was written in it is published any more."""
        self._attempt = None

    def load(self, manifest: Manifest) -> int:
        """Fill the state from a checkpoint of any layout. Returns the bytes fetched. Raises CheckpointError."""
        self.settle()
        store = retrying_store_of(self.knobs, self.slot)
        index = Catalog(store).index(manifest)
        return read_shards([part.piece for part in self.parts], index, store, manifest.prefix)

    def _write(self, prefix: str, copying: Future[list[Piece]]) -> bytes:
        knobs, retrier, pieces = self.knobs, make_retrier(self.knobs, self.slot), copying.result()
        store, sizes = store_of(knobs), (knobs.part_bytes, knobs.ring_buffers)
        return write_shards(pieces, store, prefix, self.slot, retrier, *sizes).to_bytes()

    def _publish(self, header: Header, written: Sequence[Written], num_writers: int) -> Manifest:
        records = [ShardRecord.from_bytes(one.record, f"the record of slot {slot}") for slot, one in enumerate(written)]

        def confirm() -> None:
            if self._attempt != header.uid:
                raise CheckpointError(f"{header.prefix} is of a past generation and is not published")

        return publish(retrying_store_of(self.knobs), header, records, num_writers, confirm=confirm)

    def _wait(self) -> None:
        # Of a past generation: it has been abandoned, and nobody asks what becomes of it.
        begun: tuple[Future[Any] | None, ...] = (self._saving, self._publishing)
        wait([future for future in begun if future is not None])


def _copies(pieces: Sequence[Piece]) -> list[Piece]:
    return [replace(piece, tensor=piece.tensor.detach().to("cpu", copy=True)) for piece in pieces]
