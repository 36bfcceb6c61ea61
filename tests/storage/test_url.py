"""URLs: what they open, and what a user is told of those that cannot work."""

import subprocess
import sys
from collections.abc import Buffer
from pathlib import Path

import pytest

from ftppo.clock import FakeClock
from ftppo.errors import ConfigError, NotFound, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage.local import LocalStore
from ftppo.storage.memory import MemoryStore
from ftppo.storage.url import open_store, preflight


def test_a_folder_may_be_plain_relative_or_a_file_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in (str(tmp_path / "a b"), "a b", "./a b", f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        store = open_store(url)
        assert isinstance(store, LocalStore) and store.root == tmp_path / "a b"
    assert list(tmp_path.iterdir()) == []


def test_memory_stores_of_one_name_are_one() -> None:
    open_store("memory://url-test/run/a").put("k", b"1")
    assert open_store("memory://url-test/run").get("a/k") == b"1"
    assert list(open_store("memory://url-test-2").list()) == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "is empty"),
        ("http://host/x", "unknown scheme 'http'"),
        ("S4://bucket/x", "unknown scheme 's4'"),
        ("s3:///x", "names no bucket"),
        ("gs://", "names no bucket"),
        ("s3://bucket/a?versionId=1", "query"),
        ("s3://bucket/a//b", "empty or reserved"),
        ("gs://bucket/../b", "empty or reserved"),
        ("file://host/x", "file:///host/x"),
    ],
)
def test_a_url_that_cannot_work_is_refused_with_a_remedy(url: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert caught.value.key == "checkpoint.url" and caught.value.value == url
    assert message in caught.value.remedy


@pytest.mark.parametrize(("url", "endpoint"), [("s3://me:secret@bucket/x", None), ("s3://b/x", "http://me:secret@h")])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str, endpoint: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url, endpoint=endpoint)
    assert "credentials" in str(caught.value) and "secret" not in str(caught.value)


def test_a_plain_folder_imports_no_cloud_library() -> None:
    code = (
        "import sys; from ftppo.storage.url import open_store; import ftppo.storage.writer; open_store('x');"
        "print([m for m in ('boto3', 'botocore', 'gcsfs', 'fsspec', 'torch', 'ray') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


class Refusing(MemoryStore):
    """Raises `error` from the method named `refused`."""

    def __init__(self, refused: str, error: StorageError) -> None:
        super().__init__()
        self.refused, self.error = refused, error

    def create(self, key: str, data: Buffer) -> None:
        self._check("create")
        super().create(key, data)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._check("get")
        return super().get(key, start, length)

    def _check(self, name: str) -> None:
        if self.refused == name:
            raise self.error


@pytest.mark.parametrize(
    ("refused", "error", "message"),
    [
        ("create", NotFound("NoSuchBucket"), "no such bucket"),
        ("create", PermissionDenied("403"), "writing is not permitted"),
        ("get", PermissionDenied("403"), "reading, listing or deleting is not permitted"),
        ("create", StorageError("no space left"), "no space left"),
    ],
)
def test_preflight_says_what_is_missing(refused: str, error: StorageError, message: str) -> None:
    store = Refusing(refused, error)
    with pytest.raises(ConfigError, match=message) as caught:
        preflight(store)
    assert caught.value.key == "checkpoint.url" and caught.value.__cause__ is error
    assert list(store.list()) == []


def test_preflight_lets_a_transient_error_pass() -> None:
    with pytest.raises(TransientStorageError):
        preflight(Refusing("create", TransientStorageError("busy")))


def test_preflight_refuses_a_store_that_overwrites(clock: FakeClock) -> None:
    class Careless(MemoryStore):
        def create(self, key: str, data: Buffer) -> None:
            self.put(key, data)

    store = Careless()
    with pytest.raises(ConfigError, match="overwrites objects"):
        preflight(store)
    assert list(store.list()) == []


def test_preflight_of_a_read_only_folder_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied", str(tmp_path / "root"))

    monkeypatch.setattr("os.makedirs", refuse)
    with pytest.raises(ConfigError, match=f"checkpoint.url='{tmp_path}/root': writing is not permitted"):
        preflight(LocalStore(tmp_path / "root"))
