"""A store that does as a test says."""

import threading
import zlib
from collections.abc import Buffer

from ftppo.errors import StorageError, TransientStorageError
from ftppo.storage.base import Upload
from ftppo.storage.memory import MemoryStore


class Script(MemoryStore):
    """A memory store that does as a test says: `fail` {(operation, part): times}, and counts what it was sent."""

    def __init__(self, fail: dict[tuple[str, int], int] | None = None, error: StorageError | None = None) -> None:
        super().__init__()
        self.fail, self.error = dict(fail or {}), error or TransientStorageError("busy")
        self.sent: list[tuple[str, int]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.aborted = 0

    def step(self, operation: str, part: int) -> None:
        self.gate.wait(30)
        self.sent.append((operation, part))
        if self.fail.get((operation, part), 0) > 0:
            self.fail[operation, part] -= 1
            raise self.error

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        self.step("put", 0)
        assert crc32 == zlib.crc32(data)
        super().put(key, data, crc32)

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        self.step("start", 0)
        return _ScriptUpload(self, super().start_upload(key, part_bytes))


class _ScriptUpload:
    def __init__(self, store: Script, inner: Upload) -> None:
        self.store, self.inner = store, inner

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        self.store.step("part", number)
        assert crc32 == zlib.crc32(data)
        self.inner.part(number, data, crc32)

    def complete(self) -> None:
        self.store.step("complete", 0)
        self.inner.complete()

    def abort(self) -> None:
        self.store.aborted += 1
        self.inner.abort()
