"""What every store promises, run against every store."""

import threading
import time
from array import array
from collections.abc import Buffer, Callable

import pytest

from ftppo.errors import AlreadyExists, NotFound, StorageError
from ftppo.storage.base import ObjectStore
from ftppo.storage.url import preflight
from tests.storage.conftest import MakeStore


def test_what_is_put_is_got_also_by_another(make_store: MakeStore) -> None:
    make_store().put("a/b.bin", b"\x00\xffbytes")
    assert make_store().get("a/b.bin") == b"\x00\xffbytes"


def test_put_replaces(store: ObjectStore) -> None:
    store.put("k", b"a longer first")
    store.put("k", b"second")
    assert store.get("k") == b"second"


def test_any_buffer_can_be_put(store: ObjectStore) -> None:
    buffers: list[Buffer] = [b"", bytearray(b"abc"), memoryview(array("i", [1, -2]))]
    for number, data in enumerate(buffers):
        store.put("put", data)
        store.create(f"new/{number}", data)
        assert store.get("put") == store.get(f"new/{number}") == bytes(data)
        assert store.stat("put").size_bytes == len(bytes(data))


def test_a_range_is_a_slice(store: ObjectStore) -> None:
    data = bytes(range(200))
    store.put("k", data)
    for start, length in [(0, 10), (3, 0), (150, None), (190, 100), (200, 5), (500, 1), (0, None), (199, 1)]:
        assert store.get("k", start, length) == data[start : None if length is None else start + length]


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    store.put("folder/file", b"x")
    for key in ("missing", "folder", "folder/file/below", "missing/deep/key"):
        for ask in (store.get, store.stat, lambda key: store.get(key, 0, 0), lambda key: store.get(key, 3, 1)):
            with pytest.raises(NotFound):
                ask(key)


def test_create_refuses_what_exists(store: ObjectStore) -> None:
    store.create("m/manifest.json", b"first")
    with pytest.raises(AlreadyExists):
        store.create("m/manifest.json", b"second")
    with pytest.raises(AlreadyExists):
        store.create("m/manifest.json", b"first")
    assert store.get("m/manifest.json") == b"first"
    store.delete("m/manifest.json")
    store.create("m/manifest.json", b"third")
    assert store.get("m/manifest.json") == b"third"


def test_one_racer_creates(make_store: MakeStore) -> None:
    stores = [make_store() for _ in range(4)]
    for race in range(3):
        barrier, outcomes = threading.Barrier(4), ["?"] * 4

        def run(
            index: int, race: int = race, barrier: threading.Barrier = barrier, outcomes: list[str] = outcomes
        ) -> None:
            barrier.wait(20)
            try:
                stores[index].create(f"race/{race}", b"%d" % index)
                outcomes[index] = "won"
            except AlreadyExists:
                outcomes[index] = "lost"

        _in_threads(run, 4)
        assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
        assert stores[0].get(f"race/{race}") == b"%d" % outcomes.index("won")


def test_a_listing_is_sorted_by_prefix_and_complete(store: ObjectStore) -> None:
    keys = ["step-10/a", "step-1/b", "step-1/a/deep", "other", "step-1.json", "a b/ü+%25?#&=.bin"]
    assert list(store.list()) == []
    for key in keys:
        store.put(key, key.encode())
    assert [info.key for info in store.list()] == sorted(keys)
    assert [info.key for info in store.list("step-1")] == ["step-1.json", "step-1/a/deep", "step-1/b", "step-10/a"]
    assert [info.key for info in store.list("step-1/")] == ["step-1/a/deep", "step-1/b"]
    assert list(store.list("nothing/here/")) == []
    assert [info.size_bytes for info in store.list()] == [len(key.encode()) for key in sorted(keys)]
    assert all(store.get(key) == key.encode() for key in keys)
    assert store.list("other")[0] == store.stat("other")
    assert abs(store.stat("other").modified_s - time.time()) < 300


def test_delete_is_idempotent_and_leaves_the_others(store: ObjectStore) -> None:
    store.put("d/one", b"1")
    store.put("d/two", b"2")
    store.delete("d/one")
    store.delete("d/one")
    store.delete("never/was/there")
    assert [info.key for info in store.list()] == ["d/two"]


def test_parts_become_one_object_on_complete(store: ObjectStore, part_bytes: int) -> None:
    parts = [bytes([number]) * part_bytes for number in (1, 2)] + [b"tail"]
    store.put("big", b"old")
    upload = store.start_upload("big", part_bytes)
    for number in (3, 1, 2):  # in any order
        upload.part(number, parts[number - 1])
    upload.part(1, parts[0])  # again
    assert store.get("big") == b"old"
    assert [info.key for info in store.list()] == ["big"]
    upload.complete()
    assert store.get("big") == b"".join(parts)
    assert store.get("big", part_bytes - 1, 2) == b"\x01\x02"
    assert [info.size_bytes for info in store.list()] == [2 * part_bytes + 4]


def test_parts_may_come_from_threads(store: ObjectStore, part_bytes: int) -> None:
    upload = store.start_upload("t/big", part_bytes)
    _in_threads(lambda index: upload.part(index + 1, bytes([index]) * (part_bytes if index < 3 else 1)), 4)
    upload.complete()
    assert store.get("t/big") == b"".join(bytes([index]) * part_bytes for index in range(3)) + b"\x03"


def test_an_aborted_upload_leaves_nothing(store: ObjectStore, part_bytes: int) -> None:
    upload = store.start_upload("x/big", part_bytes)
    upload.part(1, b"a" * part_bytes)
    upload.abort()
    upload.abort()
    assert list(store.list()) == []
    assert store.sweep_uploads("", 0.0) == 0


def test_a_part_after_the_abort_publishes_nothing(store: ObjectStore, part_bytes: int) -> None:
    upload = store.start_upload("x/big", part_bytes)
    upload.abort()
    with pytest.raises(StorageError):
        upload.part(1, b"late")
    assert list(store.list()) == []


def test_orphans_are_swept_by_prefix_and_age(make_store: MakeStore, part_bytes: int) -> None:
    store = make_store()
    for key in ("run-1/step-3/a", "run-1/step-4/b", "run-2/c"):
        store.start_upload(key, part_bytes).part(1, b"orphan")
    store.put("run-1/kept", b"object")
    assert store.sweep_uploads("run-1/", 3600.0) == 0
    assert store.sweep_uploads("run-1/step-", 0.0) == 2
    assert store.sweep_uploads("run-1/step-", 0.0) == 0
    assert store.sweep_uploads("", 0.0) == 1
    assert [info.key for info in store.list()] == ["run-1/kept"]


def test_preflight_passes_and_leaves_nothing(store: ObjectStore) -> None:
    preflight(store)
    assert list(store.list()) == []


def test_what_is_no_key_is_a_programmer_error(store: ObjectStore) -> None:
    for key in ("", "/a", "a//b", "a/", "../a", "a/./b", ".a.tmp", ".uploads/x", "a/.nfs01"):
        with pytest.raises(AssertionError, match="not a key"):
            store.put(key, b"x")
    store.put("a/.metadata", b"a dot alone is fine")
    assert [info.key for info in store.list()] == ["a/.metadata"]


def test_closing_twice_is_closing(store: ObjectStore) -> None:
    store.put("k", b"v")
    store.close()
    store.close()


def _in_threads(run: Callable[[int], None], num_threads: int) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            run(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert errors == [] and not any(thread.is_alive() for thread in threads)
