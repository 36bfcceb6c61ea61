"""A stream of bytes -> one object, through a bounded ring of buffers. Comes in: write(bytes) from one thread; goes out:
WrittenObject, with a checksum taken once from memory.

A full buffer is one part, sent and retried on a thread of its own while the next one fills; there are never more
threads than buffers. A writer that needs no second buffer puts the object whole. What fails on a thread is raised by
the next write() or close(). The threads are daemons and every wait is bounded: a store that never answers stops nobody.
"""

import itertools
import logging
import threading
from collections.abc import Buffer, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from ftppo.errors import StorageError
from ftppo.storage.base import ObjectStore, Upload, as_view, check_key, page_aligned
from ftppo.storage.crc import combine, crc32
from ftppo.storage.retry import Retrier

ABORT_S = 10.0  # longest wait for an abort, which is a courtesy: sweep_uploads finds what it leaves

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WrittenObject:
    """An object that is stored. Example: WrittenObject("s/0.bin", 20, "89abcdef", 1, 0)."""

    key: str
    size_bytes: int
    crc32: str  # of the whole object, 8 hexadecimal digits
    parts: int
    retries: int
    stretches: tuple[str, ...] = ()  # crc32 of what came before each mark(), from the mark before it


@dataclass(frozen=True)
class _Sum:
    """Of one part. `pieces` are (crc32, bytes) of what its marks cut it into: all but the last end at a mark."""

    crc32: int
    length: int
    pieces: Sequence[tuple[int, int]]


class BufferedWriter:
    """Writes one object. As a context manager it aborts on the way out unless close() has succeeded."""

    def __init__(
        self, store: ObjectStore, key: str, retrier: Retrier, part_bytes: int = 8 * 2**20, ring_buffers: int = 4
    ) -> None:
        assert part_bytes > 0 and ring_buffers > 0
        self.key = check_key(key)
        self._store, self._retrier, self._part_bytes, self._ring_buffers = store, retrier, part_bytes, ring_buffers
        self._upload: Upload | None = None
        self._written: WrittenObject | None = None
        self._buffer: memoryview | None = None
        self._fill_bytes = self._num_parts = 0
        self._marks: list[int] = []  # in the buffer that fills
        # shared with the threads, under this condition
        self._changed = threading.Condition()
        self._error: StorageError | None = None
        self._free: list[memoryview] = []
        self._num_buffers = self._num_busy = self._num_retries = 0
        self._sums: dict[int, _Sum] = {}  # by part
        self._progress_s = 0.0

    def write(self, data: Buffer) -> None:
        """Append bytes. They are copied: the caller may change them afterwards. Blocks while all buffers are in use.

        Raises the StorageError of a part that failed for good, or one if nothing is stored for the policy's deadline.
        """
        assert self._written is None, "written to after close"
        self._check()
        view = as_view(data)
        while view:
            if self._fill_bytes == self._part_bytes:
                self._send_part()
            if self._buffer is None:
                self._buffer = self._take_buffer()
            count = min(self._part_bytes - self._fill_bytes, len(view))
            self._buffer[self._fill_bytes : self._fill_bytes + count] = view[:count]
            self._fill_bytes, view = self._fill_bytes + count, view[count:]

    def mark(self) -> None:
        """End a stretch here: close() tells its checksum."""
        self._marks.append(self._fill_bytes)

    def close(self) -> WrittenObject:
        """Wait until the object is stored whole. Raises as write() does. Idempotent once it has succeeded."""
        if self._written is None:
            self._check()
            if self._upload is None:
                self._send(self._put_whole)
            else:
                self._send_part()
                self._wait(lambda: self._num_busy == 0, "its parts are sent")
                self._run(self._upload.complete)
            self._wait(lambda: self._num_busy == 0, "it is published")
            self._free.clear()
            sums = [self._sums[number] for number in sorted(self._sums)]
            whole, stretches = combine((one.crc32, one.length) for one in sums), tuple(_stretches(sums))
            size_bytes, retries = sum(one.length for one in sums), self._num_retries
            self._written = WrittenObject(self.key, size_bytes, f"{whole:08x}", len(sums), retries, stretches)
        return self._written

    def abort(self) -> None:
        """Give the object up and release the buffers, within a bounded time. Nothing becomes visible. Idempotent."""
        with self._changed:
            self._error = self._error or StorageError(f"{self.key}: aborted")
            self._changed.wait_for(lambda: self._num_busy == 0, ABORT_S)
        upload, self._upload, self._buffer = self._upload, None, None
        self._free.clear()
        if upload is not None:
            thread = threading.Thread(target=self._abort_upload, args=(upload,), name=f"abort {self.key}", daemon=True)
            thread.start()
            thread.join(ABORT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._written is None:
            self.abort()

    def _send_part(self) -> None:
        if self._upload is None:
            started: list[Upload] = []
            self._run(lambda: started.append(self._store.start_upload(self.key, self._part_bytes)))
            (self._upload,) = started
        self._send(self._upload.part)

    def _put_whole(self, number: int, data: Buffer, crc32: int) -> None:
        self._store.put(self.key, data, crc32)

    def _send(self, put: Callable[[int, Buffer, int], None]) -> None:
        """Start sending the current buffer."""
        self._num_parts += 1
        number, buffer, length = self._num_parts, self._buffer, self._fill_bytes
        data = memoryview(b"") if buffer is None else buffer[:length]
        marks = self._marks
        self._buffer, self._fill_bytes, self._marks = None, 0, []

        def attempt_once() -> None:
            if number not in self._sums:  # the first attempt sums, a retry only sends
                self._sums[number] = _sum(data, marks)
            put(number, data, self._sums[number].crc32)

        self._start(attempt_once, number, buffer)

    def _run(self, attempt_once: Callable[[], None]) -> None:
        """Do one thing, with retries, on a thread that can be given up on."""
        self._start(attempt_once, 0, None)
        self._wait(lambda: self._num_busy == 0, "the store answers")

    def _start(self, attempt_once: Callable[[], None], part: int, buffer: memoryview | None) -> None:
        with self._changed:
            if self._num_busy == 0:
                self._progress_s = self._retrier.clock.monotonic()
            self._num_busy += 1
        name = f"write {self.key} part {part}"
        threading.Thread(target=self._attempt, args=(attempt_once, part, buffer), name=name, daemon=True).start()

    def _attempt(self, attempt_once: Callable[[], None], part: int, buffer: memoryview | None) -> None:
        num_attempts, failure = 0, None

        def unless_failed() -> None:
            nonlocal num_attempts
            self._check()  # a sibling has failed or the writer was aborted: this part is not needed any more
            num_attempts += 1
            attempt_once()

        try:
            self._retrier.call(unless_failed, self.key, part)
        except StorageError as error:
            failure = error
        except BaseException as error:
            failure = StorageError(f"{self.key}, part {part}: {error!r}")
            failure.__cause__ = error
        with self._changed:
            self._error = self._error or failure
            self._num_retries += max(0, num_attempts - 1)
            self._num_busy -= 1
            self._progress_s = self._retrier.clock.monotonic()
            if buffer is not None:
                self._free.append(buffer)
            self._changed.notify_all()

    def _take_buffer(self) -> memoryview:
        with self._changed:
            if not self._free and self._num_buffers < self._ring_buffers:
                self._num_buffers += 1
                return page_aligned(self._part_bytes)
            self._wait(lambda: bool(self._free), "a buffer is free")
            return self._free.pop()

    def _wait(self, ready: Callable[[], bool], until: str) -> None:
        """Wait until `ready`, as long as parts keep being stored; raise what failed meanwhile."""
        clock, deadline_s = self._retrier.clock, self._retrier.policy.deadline_s
        with self._changed:
            while self._error is None and not ready():
                left_s = self._progress_s + deadline_s - clock.monotonic()
                if left_s <= 0:
                    what = f"nothing was stored for {deadline_s:g} s, waiting until {until}"
                    self._error = StorageError(f"{self._store.url}/{self.key}: {what}")
                else:
                    self._changed.wait(left_s)
        self._check()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _abort_upload(self, upload: Upload) -> None:
        try:
            self._retrier.call(upload.abort, f"abort {self.key}")
        except StorageError as error:
            log.warning("%s: could not be aborted and is left to be swept: %s", self.key, error)


def _sum(data: memoryview, marks: Sequence[int]) -> _Sum:
    bounds = [0, *marks, len(data)]
    pieces = [(crc32(data[start:end]), end - start) for start, end in itertools.pairwise(bounds)]
    return _Sum(combine(pieces), len(data), pieces)


def _stretches(sums: Iterable[_Sum]) -> Iterator[str]:
    """Checksums of what lies between marks, from the parts that hold it."""
    begun: list[tuple[int, int]] = []
    for one in sums:
        for piece in one.pieces[:-1]:
            yield f"{combine([*begun, piece]):08x}"
            begun = []
        begun.append(one.pieces[-1])
