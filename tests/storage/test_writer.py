"""The buffered writer: bytes equal, memory bounded, parts retried alone, errors seen, nobody held up."""

import gc
import threading
import time
import tracemalloc
import zlib
from collections.abc import Buffer

import numpy as np
import pytest

from ftppo.clock import FakeClock, SystemClock
from ftppo.errors import NotFound, PermissionDenied, RetriesExhausted, StorageError, TransientStorageError
from ftppo.storage import writer as writer_module
from ftppo.storage.base import ObjectStore, Upload
from ftppo.storage.crc import combine
from ftppo.storage.memory import MemoryStore
from ftppo.storage.retry import Retrier, RetryEvent, RetryPolicy
from ftppo.storage.writer import BufferedWriter, WrittenObject
from tests.storage.script import Script

PATTERN = bytes(range(251)) * 40  # a length and a period that divide no buffer


def write(store: ObjectStore, retrier: Retrier, data: bytes, step: int = 97, ring: int = 3) -> BufferedWriter:
    stream = BufferedWriter(store, "s/k", retrier, part_bytes=1000, ring_buffers=ring)
    for start in range(0, len(data), step):
        stream.write(data[start : start + step])
    return stream


@pytest.mark.parametrize("ring", [1, 2, 5])
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 1001, 2000, 2001, 9999])
@pytest.mark.parametrize("step", [97, 1000, 5000])
def test_bytes_and_checksum_are_those_written(retrier: Retrier, size: int, step: int, ring: int) -> None:
    store, data = MemoryStore(), PATTERN[:size]
    written = write(store, retrier, data, step, ring).close()
    assert store.get("s/k") == data
    assert (written.key, written.size_bytes, written.retries) == ("s/k", size, 0)
    assert written.crc32 == f"{zlib.crc32(data):08x}"
    assert written.parts == max(1, -(-size // 1000))
    assert [info.key for info in store.list()] == ["s/k"]


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1000, 1), (9999, 10)])
def test_every_store_takes_what_is_written(store: ObjectStore, retrier: Retrier, size: int, parts: int) -> None:
    written = write(store, retrier, PATTERN[:size]).close()
    assert store.get("s/k") == PATTERN[:size]
    assert written == WrittenObject("s/k", size, f"{zlib.crc32(PATTERN[:size]):08x}", parts, 0)
    assert [info.key for info in store.list()] == ["s/k"]


def test_combined_checksums_are_those_of_the_whole() -> None:
    for cuts in ([], [0], [1, 2, 3], [5000], [0, 0, 7000, 1], [10**6]):
        chunks = [np.random.default_rng(cut).bytes(cut) for cut in cuts]
        assert combine((zlib.crc32(chunk), len(chunk)) for chunk in chunks) == zlib.crc32(b"".join(chunks))


@pytest.mark.parametrize("lengths", [[5], [0], [1000], [999, 1, 0, 1], [2500], [300, 1200, 40, 0, 3000, 1]])
def test_stretches_between_marks_have_checksums_of_their_own(retrier: Retrier, lengths: list[int]) -> None:
    stream, stretches, start = BufferedWriter(MemoryStore(), "k", retrier, part_bytes=1000), list[bytes](), 0
    for length in lengths:
        stretches.append(PATTERN[start : start + length])
        stream.write(stretches[-1])
        stream.mark()
        start += length
    stream.write(b"the rest")
    written = stream.close()
    assert written.stretches == tuple(f"{zlib.crc32(one):08x}" for one in stretches)
    assert written.crc32 == f"{zlib.crc32(PATTERN[:start] + b'the rest'):08x}"


def test_what_fits_one_buffer_is_put_whole(retrier: Retrier) -> None:
    store = Script()
    write(store, retrier, PATTERN[:1000]).close()
    assert store.sent == [("put", 0)]


def test_the_caller_may_change_what_it_wrote(retrier: Retrier) -> None:
    store, scratch = MemoryStore(), bytearray(300)
    with BufferedWriter(store, "k", retrier, part_bytes=1000) as stream:
        for number in range(10):
            scratch[:] = bytes([number]) * 300
            stream.write(scratch)
        stream.close()
    assert store.get("k") == b"".join(bytes([number]) * 300 for number in range(10))


def test_arrays_are_written_as_their_bytes(retrier: Retrier) -> None:
    array = np.arange(5000, dtype=np.int16).reshape(50, 100)
    stream = BufferedWriter(store := MemoryStore(), "k", retrier, part_bytes=1000)
    stream.write(array)
    assert stream.close().size_bytes == array.nbytes
    assert store.get("k") == array.tobytes()


@pytest.mark.parametrize(
    "fail",
    [
        {("part", 2): 1},
        {("part", 1): 3, ("part", 4): 2},
        {("start", 0): 2, ("complete", 0): 1},
        {("part", number): 1 for number in range(1, 6)},
    ],
)
def test_k_failures_cost_exactly_k_resends(retrier: Retrier, fail: dict[tuple[str, int], int]) -> None:
    store = Script(fail)
    written = write(store, retrier, PATTERN[:5000]).close()
    total = sum(fail.values())
    assert len(store.sent) == 1 + 5 + 1 + total
    assert all(store.sent.count(step) == 1 + times for step, times in fail.items())
    assert written.retries == total == retrier.num_retries
    assert store.get("s/k") == PATTERN[:5000]


def test_a_retry_sums_nothing_again(retrier: Retrier, monkeypatch: pytest.MonkeyPatch) -> None:
    summed: list[int] = []

    def noted(data: memoryview) -> int:
        summed.append(len(data))
        return zlib.crc32(data)

    monkeypatch.setattr(writer_module, "crc32", noted)
    write(Script({("part", 1): 3, ("part", 3): 2}), retrier, PATTERN[:2500]).close()
    assert sorted(summed) == [500, 1000, 1000]
    summed.clear()
    write(Script({("put", 0): 3}), retrier, PATTERN[:400]).close()
    assert summed == [400]


def test_a_part_that_fails_for_good_is_raised_by_the_next_call_and_publishes_nothing(retrier: Retrier) -> None:
    store = Script({("part", 1): 99})
    with (
        pytest.raises(RetriesExhausted, match=r"s/k: gave up after 4 attempts") as caught,
        BufferedWriter(store, "s/k", retrier, part_bytes=1000, ring_buffers=2) as stream,
    ):
        for _ in range(1000):
            stream.write(PATTERN[:500])
    assert isinstance(caught.value.__cause__, TransientStorageError)
    assert store.aborted == 1 and list(store.list()) == []
    assert ("complete", 0) not in store.sent


def test_a_failure_of_the_last_part_is_raised_by_close_every_time(retrier: Retrier) -> None:
    store = Script({("part", 3): 99})
    stream = write(store, retrier, PATTERN[:2500])
    for _ in range(2):
        with pytest.raises(RetriesExhausted):
            stream.close()
    stream.abort()
    with pytest.raises(NotFound):
        store.get("s/k")


def test_a_permanent_error_is_not_retried(retrier: Retrier) -> None:
    store = Script({("part", 2): 1}, PermissionDenied("no right"))
    stream = write(store, retrier, PATTERN[:1500])
    with pytest.raises(PermissionDenied, match="no right"):
        stream.close()
    assert store.sent.count(("part", 2)) == 1 and retrier.num_retries == 0


def test_a_defect_in_a_store_is_raised_with_its_cause(retrier: Retrier) -> None:
    class Broken(MemoryStore):
        def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
            raise ZeroDivisionError("defect")

    with pytest.raises(StorageError, match="ZeroDivisionError") as caught:
        write(Broken(), retrier, b"x").close()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_retries_name_object_and_part(clock: FakeClock) -> None:
    events: list[RetryEvent] = []
    retrier = Retrier(RetryPolicy(), clock, on_event=events.append)
    write(Script({("part", 2): 1}), retrier, PATTERN[:1500]).close()
    assert [(event.what, event.part, event.attempt) for event in events] == [("s/k", 2, 1)]


def test_a_full_ring_holds_the_writer_up(retrier: Retrier) -> None:
    store = Script()
    stream = BufferedWriter(store, "s/k", retrier, part_bytes=1000, ring_buffers=3)
    stream.write(PATTERN[:1001])  # the upload has begun
    store.gate.clear()
    accepted: list[int] = []

    def produce() -> None:
        for number in range(8):
            stream.write(PATTERN[:1000])
            accepted.append(number)

    producer = threading.Thread(target=produce)
    producer.start()
    _until(lambda: len(accepted) >= 2)
    producer.join(0.2)
    assert producer.is_alive() and len(accepted) == 2  # three buffers: 1,001 bytes and two thousand more
    store.gate.set()
    producer.join(30)
    assert stream.close().size_bytes == 9001
    assert store.get("s/k") == PATTERN[:1001] + PATTERN[:1000] * 8


def test_memory_is_bounded_by_the_ring(retrier: Retrier) -> None:
    class Sink(MemoryStore):
        def start_upload(self, key: str, part_bytes: int) -> Upload:
            return _Sink()

    class _Sink:
        def part(self, number: int, data: Buffer, crc32: int | None = None) -> None: ...
        def complete(self) -> None: ...
        def abort(self) -> None: ...

    part_bytes, ring = 2**18, 3
    piece = bytes(part_bytes // 3)
    gc.collect()
    tracemalloc.start()
    try:
        stream = BufferedWriter(Sink(), "k", retrier, part_bytes, ring)
        for _ in range(300):
            stream.write(piece)
        stream.close()
        peak_bytes = tracemalloc.get_traced_memory()[1]
        del stream
    finally:
        tracemalloc.stop()
    assert part_bytes < peak_bytes < (ring + 1) * part_bytes


@pytest.mark.parametrize("size", [500, 5000])
def test_a_store_that_never_answers_is_an_error_that_names_the_object(size: int) -> None:
    store = Script()
    store.gate.clear()
    retrier = Retrier(RetryPolicy(deadline_s=0.3), SystemClock())
    try:
        with pytest.raises(StorageError, match=r"memory://.*s/k: nothing was stored for 0.3 s"):
            write(store, retrier, PATTERN[:size]).close()
    finally:
        store.gate.set()


def test_abort_of_a_stuck_writer_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "ABORT_S", 0.2)
    store = Script()
    retrier = Retrier(RetryPolicy(deadline_s=0.3), SystemClock())
    stream = BufferedWriter(store, "s/k", retrier, part_bytes=1000, ring_buffers=2)
    stream.write(PATTERN[:1001])
    _until(lambda: ("part", 1) in store.sent)
    store.gate.clear()
    with pytest.raises(StorageError, match="nothing was stored"), stream:
        stream.write(PATTERN[:5000])
    assert store.aborted == 1
    store.gate.set()
    _until(lambda: not any(thread.name.startswith("write s/k") for thread in threading.enumerate()))
    assert list(store.list()) == []


def test_leaving_without_close_aborts(retrier: Retrier) -> None:
    store = Script()
    with pytest.raises(KeyError), BufferedWriter(store, "s/k", retrier, part_bytes=1000) as stream:
        stream.write(PATTERN[:3000])
        raise KeyError("the caller's own")
    assert store.aborted == 1 and list(store.list()) == [] and store.sweep_uploads("", 0.0) == 0


def test_close_is_idempotent_and_ends_the_threads(retrier: Retrier) -> None:
    stream = write(Script(), retrier, PATTERN[:5000])
    assert stream.close() == stream.close()
    _until(lambda: not any(thread.name.startswith("write s/k") for thread in threading.enumerate()))
    with pytest.raises(AssertionError, match="after close"):
        stream.write(b"more")


def _until(true: object, limit_s: float = 20.0) -> None:
    end = time.monotonic() + limit_s
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it never came"
        time.sleep(0.005)
