"""Any store, with every operation tried again by one Retrier. Comes in: a store; goes out: the same, more patient."""

from collections.abc import Buffer, Sequence

from ftppo.errors import AlreadyExists, NotFound
from ftppo.storage.base import ObjectInfo, ObjectStore, Upload, as_view
from ftppo.storage.retry import Retrier


class RetryingStore:
    """`inner`, where each operation is tried again while its error is transient, then raises RetriesExhausted."""

    def __init__(self, inner: ObjectStore, retrier: Retrier) -> None:
        self.inner, self.retrier, self.url = inner, retrier, inner.url

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """See ObjectStore."""
        self.retrier.call(lambda: self.inner.put(key, data, crc32), f"put {key}")

    def create(self, key: str, data: Buffer) -> None:
        """See ObjectStore. After an attempt whose answer was lost, an object with our content is our success."""
        attempts = 0

        def attempt_once() -> None:
            nonlocal attempts
            attempts += 1
            try:
                self.inner.create(key, data)
            except AlreadyExists:
                if attempts == 1 or not self._holds(key, data):
                    raise

        self.retrier.call(attempt_once, f"create {key}")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        return self.retrier.call(lambda: self.inner.get(key, start, length), f"get {key}")

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        return self.retrier.call(lambda: self.inner.stat(key), f"stat {key}")

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """See ObjectStore."""
        return self.retrier.call(lambda: self.inner.list(prefix), f"list {prefix}")

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        self.retrier.call(lambda: self.inner.delete(key), f"delete {key}")

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """See ObjectStore."""
        upload = self.retrier.call(lambda: self.inner.start_upload(key, part_bytes), f"start {key}")
        return _RetryingUpload(upload, key, self.retrier)

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """See ObjectStore."""
        return self.retrier.call(lambda: self.inner.sweep_uploads(prefix, older_than_s), f"sweep {prefix}")

    def close(self) -> None:
        """See ObjectStore."""
        self.inner.close()

    def _holds(self, key: str, data: Buffer) -> bool:
        try:
            return self.inner.get(key) == as_view(data)
        except NotFound:
            return False


class _RetryingUpload:
    def __init__(self, inner: Upload, key: str, retrier: Retrier) -> None:
        self._inner, self._key, self._retrier = inner, key, retrier

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """See Upload."""
        self._retrier.call(lambda: self._inner.part(number, data, crc32), f"put {self._key}", number)

    def complete(self) -> None:
        """See Upload."""
        self._retrier.call(self._inner.complete, f"complete {self._key}")

    def abort(self) -> None:
        """See Upload."""
        self._retrier.call(self._inner.abort, f"abort {self._key}")
