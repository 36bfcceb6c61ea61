"""Objects that reach the folder store in parts: on disk before they have a name, part by part and as a whole."""

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import NotFound, StorageError, TransientStorageError
from ftppo.storage import folder
from ftppo.storage.local import LocalStore
from tests.storage.disk import fail

type Patch = pytest.MonkeyPatch


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> LocalStore:
    return LocalStore(tmp_path / "root", clock)


def test_parts_are_on_disk_before_the_name_is(store: LocalStore, monkeypatch: Patch) -> None:
    upload, calls = store.start_upload("k", 4), list[str]()
    for owner, name in ((os, "pwrite"), (folder, "sync_range"), (os, "fsync"), (os, "replace")):
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
        monkeypatch.setattr(folder, "_sync_file_range", syncing)
        upload.part(1, b"abcd")
    assert len(synced) == 2
    monkeypatch.setattr(folder, "_sync_file_range", refusing(errno.EIO))
    with pytest.raises(TransientStorageError):
        upload.part(1, b"abcd")
    assert len(synced) == 2


def test_a_part_whose_sync_failed_is_written_again(store: LocalStore, monkeypatch: Patch) -> None:
    upload = store.start_upload("k", 4)
    fail(monkeypatch, "sync_range", errno.EIO, owner=folder)
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
