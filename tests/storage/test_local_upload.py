"""Objects that reach the folder store in parts: on disk before they have a name, part by part and as a whole."""

import ctypes
import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import NotFound, StorageError, TransientStorageError
from ftppo.storage import parts
from ftppo.storage.base import page_aligned
from ftppo.storage.local import LocalStore
from tests.storage.disk import fail

type Patch = pytest.MonkeyPatch

PAGE = bytes(range(256)) * 16


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> LocalStore:
    return LocalStore(tmp_path / "root", clock)


def test_parts_are_on_disk_before_the_name_is(store: LocalStore, monkeypatch: Patch) -> None:
    upload, calls = store.start_upload("k", 4), list[str]()
    for owner, name in ((os, "pwrite"), (parts, "sync_range"), (os, "fsync"), (os, "replace")):
        original = getattr(owner, name)

        def logged(*args: object, name: str = name, original: Callable[..., object] = original) -> object:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(owner, name, logged)
    for number, data in ((1, b"abcd"), (2, b"ef")):
        upload.part(number, data)
    upload.complete()
    assert calls == ["pwrite", "sync_range"] * 2 + ["fsync", "replace", "fsync"] and store.get("k") == b"abcdef"


def test_where_a_range_cannot_be_synced_the_file_is(store: LocalStore, monkeypatch: Patch) -> None:
    def refusing(number: int) -> Callable[..., int]:
        def call(*args: object) -> int:
            ctypes.set_errno(number)
            return -1

        return call

    upload, synced = store.start_upload("k", 4), list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    for syncing in (None, refusing(errno.ENOSYS)):
        monkeypatch.setattr(parts, "_sync_file_range", syncing)
        upload.part(1, b"abcd")
    assert len(synced) == 2
    monkeypatch.setattr(parts, "_sync_file_range", refusing(errno.EIO))
    with pytest.raises(TransientStorageError):
        upload.part(1, b"abcd")
    assert len(synced) == 2


def test_a_part_whose_sync_failed_is_written_again(store: LocalStore, monkeypatch: Patch) -> None:
    upload = store.start_upload("k", 4)
    fail(monkeypatch, "sync_range", errno.EIO, owner=parts)
    written: list[int] = []
    pwrite = os.pwrite

    def counted(handle: int, data: memoryview, offset: int) -> int:
        written.append(len(data))
        return pwrite(handle, data, offset)

    monkeypatch.setattr(os, "pwrite", counted)
    with pytest.raises(TransientStorageError):
        upload.part(1, b"abcd")
    upload.part(1, b"abcd")
    upload.complete()
    assert written == [4, 4] and store.get("k") == b"abcd"


def test_complete_can_be_repeated_after_its_rename(store: LocalStore, monkeypatch: Patch) -> None:
    upload = store.start_upload("k", 4)
    upload.part(1, b"abcd")
    fail(monkeypatch, "fsync", errno.EIO)
    with pytest.raises(TransientStorageError):
        upload.complete()
    upload.complete()
    assert store.get("k") == b"abcd" and [path.name for path in store.root.iterdir()] == ["k"]


def test_complete_refuses_a_file_that_lost_bytes(store: LocalStore) -> None:
    upload = store.start_upload("k", 4)
    upload.part(1, b"abcd")
    upload.part(2, b"ef")
    (temp,) = store.root.iterdir()
    os.truncate(temp, 5)
    with pytest.raises(StorageError, match="5 bytes where 6"):
        upload.complete()
    with pytest.raises(NotFound):
        store.get("k")


def test_missing_or_short_parts_are_programmer_errors(store: LocalStore) -> None:
    upload = store.start_upload("k", 4)
    upload.part(1, b"abc")
    upload.part(2, b"ab")
    with pytest.raises(AssertionError, match="short"):
        upload.complete()
    upload.part(1, b"abcd")
    upload.part(4, b"a")
    with pytest.raises(AssertionError, match="missing"):
        upload.complete()


def upload_pages(store: LocalStore) -> bytes:
    """Two parts of two pages and one of less, sent from pages; what is stored then."""
    upload = store.start_upload("k", 2 * len(PAGE))
    for number, data in ((1, PAGE + PAGE), (2, PAGE[::-1] + PAGE), (3, b"end")):
        buffer = page_aligned(len(data))
        buffer[:] = data
        upload.part(number, buffer)
    upload.complete()
    return store.get("k")


def test_whole_pages_are_written_past_the_cache_and_the_rest_is_not(store: LocalStore, monkeypatch: Patch) -> None:
    opened, synced = list[bool](), list[int]()
    original, sync_range = os.open, parts.sync_range

    def noted(path: Path, flags: int, *mode: int) -> int:
        if str(path).endswith(".tmp") and flags & os.O_WRONLY and not flags & os.O_CREAT:
            opened.append(bool(flags & os.O_DIRECT))
        return original(path, flags, *mode)

    def counted(handle: int, offset: int, length: int) -> None:
        synced.append(length)
        sync_range(handle, offset, length)

    monkeypatch.setattr(os, "open", noted)
    monkeypatch.setattr(parts, "sync_range", counted)
    assert upload_pages(store) == PAGE + PAGE + PAGE[::-1] + PAGE + b"end"
    assert opened[:2] == [True, True] and opened[-2:] == [False, False]  # the last part, and the sync of the file
    assert synced[-1] == 3


@pytest.mark.parametrize("name", ["open", "pwrite"])
def test_a_file_system_that_knows_no_way_past_the_cache_is_written_through_it(
    store: LocalStore, monkeypatch: Patch, name: str
) -> None:
    original = getattr(os, name)

    def refusing(first: int | Path, second: int, *rest: int) -> object:
        flags = fcntl.fcntl(first, fcntl.F_GETFL) if isinstance(first, int) else second
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return original(first, second, *rest)

    monkeypatch.setattr(os, name, refusing)
    assert upload_pages(store) == PAGE + PAGE + PAGE[::-1] + PAGE + b"end"


def test_memory_that_does_not_begin_with_a_page_is_written_too(store: LocalStore) -> None:
    upload = store.start_upload("k", len(PAGE))
    upload.part(1, page_aligned(len(PAGE) + 1)[1:])
    upload.part(2, PAGE)
    upload.complete()
    assert store.get("k") == bytes(len(PAGE)) + PAGE


def test_a_device_that_fails_is_an_error_and_the_part_can_be_sent_again(store: LocalStore, monkeypatch: Patch) -> None:
    upload, buffer = store.start_upload("k", len(PAGE)), page_aligned(len(PAGE))
    buffer[:] = PAGE
    failures = fail(monkeypatch, "pwrite", errno.EIO)
    with pytest.raises(TransientStorageError):
        upload.part(1, buffer)
    assert len(failures) == 1
    upload.part(1, buffer)
    upload.complete()
    assert store.get("k") == PAGE


def upload_two_at_once(store: LocalStore, meeting: threading.Barrier, patch: Patch) -> bytes:
    """Two parts, each from a thread, in whose write calls they are to meet; what is stored then."""
    pwrite = os.pwrite

    def met(handle: int, data: memoryview, offset: int) -> int:
        with suppress(threading.BrokenBarrierError):
            meeting.wait()
        return pwrite(handle, data, offset)

    patch.setattr(os, "pwrite", met)
    upload, pages = store.start_upload("k", len(PAGE)), [page_aligned(len(PAGE)) for _ in range(2)]
    for buffer, content in zip(pages, (PAGE, PAGE[::-1]), strict=True):
        buffer[:] = content
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(upload.part, (1, 2), pages))
    upload.complete()
    return store.get("k")


def test_parts_are_written_side_by_side_where_there_is_room(store: LocalStore, monkeypatch: Patch) -> None:
    meeting = threading.Barrier(2, timeout=30)
    assert upload_two_at_once(store, meeting, monkeypatch) == PAGE + PAGE[::-1]
    assert not meeting.broken


def some_room(handle: int, *_: int) -> int:
    """As a file system that runs full on the way."""
    os.ftruncate(handle, 3 * len(PAGE) + 1)
    return -1


@pytest.mark.parametrize("fallocate", [None, lambda *_: -1, some_room], ids=["unknown", "no room", "too little"])
def test_where_no_room_can_be_taken_parts_are_written_one_by_one(
    store: LocalStore, monkeypatch: Patch, fallocate: Callable[..., int] | None
) -> None:
    monkeypatch.setattr(parts, "_fallocate", fallocate)
    meeting = threading.Barrier(2, timeout=0.2)
    assert upload_two_at_once(store, meeting, monkeypatch) == PAGE + PAGE[::-1]
    assert meeting.broken


def test_on_a_disk_that_is_almost_full_no_room_is_taken(store: LocalStore, monkeypatch: Patch) -> None:
    real = os.fstatvfs

    def full(handle: int) -> os.statvfs_result:
        found = list(real(handle))
        found[4] = 0  # f_bavail: blocks
        return os.statvfs_result(found)

    monkeypatch.setattr(os, "fstatvfs", full)
    meeting = threading.Barrier(2, timeout=0.2)
    assert upload_two_at_once(store, meeting, monkeypatch) == PAGE + PAGE[::-1]
    assert meeting.broken
