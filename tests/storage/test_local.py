"""The folder store on file systems that misbehave: races, network mounts, full disks, failed syncs."""

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import AlreadyExists, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage import folder
from ftppo.storage.local import LocalStore
from tests.storage.disk import fail

type Patch = pytest.MonkeyPatch


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> LocalStore:
    return LocalStore(tmp_path / "root", clock)


def files_of(store: LocalStore) -> list[str]:
    return sorted(path.relative_to(store.root).as_posix() for path in store.root.rglob("*"))


def test_a_folder_that_exists_but_does_not_show_yet_is_waited_for(
    store: LocalStore, clock: FakeClock, monkeypatch: Patch
) -> None:
    hidden, isdir = 7, os.path.isdir
    target = store.root / "step"
    os.makedirs(target)

    def late_isdir(path: str | Path) -> bool:
        nonlocal hidden
        if Path(path) == target and hidden:
            hidden -= 1
            return False
        return isdir(path)

    def makedirs(path: str | Path, exist_ok: bool = False) -> None:
        raise FileExistsError(errno.EEXIST, "File exists", str(path))

    monkeypatch.setattr(os.path, "isdir", late_isdir)
    monkeypatch.setattr(os, "makedirs", makedirs)
    store.put("step/a", b"1")
    assert store.get("step/a") == b"1"
    assert hidden == 0 and clock.slept


def test_a_folder_that_never_shows_fails_after_a_bounded_wait(
    store: LocalStore, clock: FakeClock, monkeypatch: Patch
) -> None:
    fail(monkeypatch, "makedirs", errno.EEXIST, times=10**6)
    with pytest.raises(StorageError, match="File exists"):
        store.put("step/a", b"1")
    assert folder.VISIBLE_S <= sum(clock.slept) <= folder.VISIBLE_S + 1


def test_a_file_in_the_place_of_a_folder_fails_at_once(store: LocalStore, clock: FakeClock) -> None:
    store.put("a", b"file")
    with pytest.raises(StorageError, match="a/b"):
        store.put("a/b", b"1")
    assert clock.slept == []


def test_many_writers_make_the_same_folders_at_once(tmp_path: Path) -> None:
    stores = [LocalStore(tmp_path / "root") for _ in range(8)]
    for attempt in range(5):
        threads = [
            threading.Thread(target=store.put, args=(f"{attempt}/x/y/z/{number}", b"data"))
            for number, store in enumerate(stores)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(stores[0].list()) == 5 * 8


def test_deleting_and_writing_beside_each_other_never_fails(tmp_path: Path) -> None:
    store, errors = LocalStore(tmp_path / "root"), list[BaseException]()

    def churn(name: str) -> None:
        try:
            for _ in range(40):
                store.put(f"deep/er/{name}", b"x")
                store.delete(f"deep/er/{name}")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=churn, args=(str(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == [] and files_of(store) == []


def test_the_last_object_takes_its_folders_along(store: LocalStore) -> None:
    store.put("s/a/b/1", b"1")
    store.put("s/2", b"2")
    store.delete("s/a/b/1")
    assert files_of(store) == ["s", "s/2"]
    store.delete("s/2")
    assert files_of(store) == [] and store.root.is_dir()


@pytest.mark.parametrize("write", ["put", "create"])
@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EIO, TransientStorageError),
        (errno.ESTALE, TransientStorageError),
        (errno.ENOSPC, StorageError),
        (errno.EDQUOT, StorageError),
        (errno.EACCES, PermissionDenied),
        (errno.EROFS, PermissionDenied),
    ],
)
def test_a_failed_write_is_typed_and_leaves_the_old_object(
    store: LocalStore, monkeypatch: Patch, write: str, number: int, kind: type[StorageError]
) -> None:
    store.put("s/k", b"old")
    if write == "create":
        store.delete("s/k")
    fail(monkeypatch, "fsync", number)
    with pytest.raises(StorageError) as caught:
        getattr(store, write)("s/k", b"new")
    assert type(caught.value) is kind
    assert isinstance(caught.value.__cause__, OSError)
    assert "s/k" in str(caught.value)
    monkeypatch.undo()
    assert [info.key for info in store.list()] == (["s/k"] if write == "put" else [])
    assert [name for name in files_of(store) if name.endswith(".tmp")] == []


def test_a_short_write_is_continued(store: LocalStore, monkeypatch: Patch) -> None:
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, offset: pwrite(handle, data[:3], offset))
    store.put("k", b"0123456789")
    assert store.get("k") == b"0123456789"


def test_everything_is_on_disk_before_the_name_is(store: LocalStore, monkeypatch: Patch) -> None:
    calls: list[str] = []
    for name in ("pwrite", "fsync", "replace", "link"):
        original = getattr(os, name)

        def logged(*args: object, name: str = name, original: Callable[..., object] = original) -> object:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(os, name, logged)
    store.root.mkdir()
    for write, publish in ((store.put, "replace"), (store.create, "link")):
        calls.clear()
        write(publish, b"data")
        assert calls == ["pwrite", "fsync", publish, "fsync"]


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_create_holds_without_hard_links(store: LocalStore, monkeypatch: Patch, number: int) -> None:
    fail(monkeypatch, "link", number, times=10**6)
    store.create("m", b"first")
    with pytest.raises(AlreadyExists):
        store.create("m", b"second")
    assert store.get("m") == b"first" and files_of(store) == ["m"]


def test_create_waits_for_another_claim(store: LocalStore, monkeypatch: Patch, clock: FakeClock) -> None:
    fail(monkeypatch, "link", errno.ENOTSUP, times=10**6)
    claim = store.root / ".m.000000000000.tmp"
    store.root.mkdir()
    claim.touch()
    with pytest.raises(TransientStorageError, match="another writer"):
        store.create("m", b"first")
    clock.time = claim.stat().st_mtime + 100
    assert store.sweep_uploads("m", 50.0) == 1
    store.create("m", b"first")


def test_a_link_that_a_network_mount_sent_twice_is_a_success(store: LocalStore, monkeypatch: Patch) -> None:
    link = os.link

    def link_twice(source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", link_twice)
    store.create("m", b"ours")
    assert store.get("m") == b"ours"


def test_a_cached_absence_is_asked_about_again(store: LocalStore, monkeypatch: Patch) -> None:
    store.put("s/k", b"there")
    scandir, opened = os.scandir, list[Path]()

    def scan(path: Path) -> object:
        opened.append(path)
        return scandir(path)

    monkeypatch.setattr(Path, "is_file", lambda path: bool(opened) and os.path.isfile(path))
    monkeypatch.setattr(os, "scandir", scan)
    assert store.get("s/k") == b"there"
    assert opened == [store.root / "s"]


def test_young_and_foreign_hidden_files_are_not_swept(store: LocalStore, clock: FakeClock) -> None:
    store.start_upload("s/new", 4).part(1, b"abcd")
    (store.root / "s" / ".nfs0001").touch()
    (store.root / "s" / ".notes.tmp").touch()
    clock.time = (store.root / "s").stat().st_mtime
    assert store.sweep_uploads("s/", 60.0) == 0
    clock.advance(120)
    assert store.sweep_uploads("s/o", 60.0) == 0
    assert store.sweep_uploads("s/", 60.0) == 1
    assert files_of(store) == ["s", "s/.nfs0001", "s/.notes.tmp"]
    assert list(store.list()) == []
