"""A store in this process's memory, for tests and trials. Comes in: keys and bytes; goes out: copies of them."""

import threading
from collections.abc import Buffer, Sequence

from ftppo.clock import Clock, SystemClock
from ftppo.errors import AlreadyExists, NotFound
from ftppo.storage.base import ObjectInfo, Upload, as_view, check_key, check_parts

type Content = tuple[bytes, float]  # the bytes, and when they came

_shared: dict[str, dict[str, Content]] = {}


class MemoryStore:
    """Objects in a dict. Stores made with the same name share it for the life of the process; "" shares with none."""

    def __init__(self, name: str = "", prefix: str = "", clock: Clock | None = None) -> None:
        self.url = f"memory://{name}/{prefix}" if prefix else f"memory://{name}"
        self._root = f"{prefix}/" if prefix else ""
        self._clock = clock or SystemClock()
        self._objects: dict[str, Content] = _shared.setdefault(name, {}) if name else {}
        self._uploads: set[_MemoryUpload] = set()
        self._lock = threading.Lock()

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """See ObjectStore."""
        self._objects[self._name(key)] = (bytes(as_view(data)), self._clock.now())

    def create(self, key: str, data: Buffer) -> None:
        """See ObjectStore."""
        content = (bytes(as_view(data)), self._clock.now())
        if self._objects.setdefault(self._name(key), content) is not content:
            raise AlreadyExists(f"{self.url}/{key} exists")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        return self._find(key)[0][start : None if length is None else start + length]

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        data, modified_s = self._find(key)
        return ObjectInfo(key, len(data), modified_s)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """See ObjectStore."""
        start = self._root + prefix
        found = [(name, content) for name, content in list(self._objects.items()) if name.startswith(start)]
        return sorted(ObjectInfo(name.removeprefix(self._root), len(data), when) for name, (data, when) in found)

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        self._objects.pop(self._name(key), None)

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """See ObjectStore."""
        upload = _MemoryUpload(self, check_key(key), part_bytes, self._clock.now())
        with self._lock:
            self._uploads.add(upload)
        return upload

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """See ObjectStore."""
        oldest_s = self._clock.now() - older_than_s
        with self._lock:
            old = [upload for upload in self._uploads if upload.key.startswith(prefix) and upload.started_s <= oldest_s]
        for upload in old:
            upload.abort()
        return len(old)

    def close(self) -> None:
        """See ObjectStore."""

    def holds(self, upload: "_MemoryUpload") -> bool:
        """Whether an upload is still open."""
        with self._lock:
            return upload in self._uploads

    def publish(self, upload: "_MemoryUpload", data: bytes) -> None:
        """An upload has become an object."""
        self._objects[self._name(upload.key)] = (data, self._clock.now())
        self.forget(upload)

    def forget(self, upload: "_MemoryUpload") -> None:
        """An upload has ended."""
        with self._lock:
            self._uploads.discard(upload)

    def _name(self, key: str) -> str:
        return self._root + check_key(key)

    def _find(self, key: str) -> Content:
        try:
            return self._objects[self._name(key)]
        except KeyError as error:
            raise NotFound(f"{self.url}/{key}: no such object") from error


class _MemoryUpload:
    """Copies of the parts until they are joined."""

    def __init__(self, store: MemoryStore, key: str, part_bytes: int, started_s: float) -> None:
        self.key, self.started_s = key, started_s
        self._store, self._part_bytes = store, part_bytes
        self._parts: dict[int, bytes] = {}

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """See Upload."""
        if not self._store.holds(self):
            raise NotFound(f"{self._store.url}/{self.key}: the upload was aborted")
        self._parts[number] = bytes(as_view(data))

    def complete(self) -> None:
        """See Upload."""
        check_parts({number: len(data) for number, data in self._parts.items()}, self._part_bytes)
        self._store.publish(self, b"".join(data for _, data in sorted(self._parts.items())))

    def abort(self) -> None:
        """See Upload."""
        self._parts.clear()
        self._store.forget(self)
