"""What every store can do. Comes in: bytes under a key; goes out: the same bytes, or a typed StorageError.

A store does one attempt and says by the type of its error whether another may help; trying again is retry.py's.
"""

import ctypes
from collections.abc import Buffer, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

PAGE_BYTES = 4096
UPLOADS = ".uploads"  # folder for parts of unfinished uploads, where a store keeps them as objects


@dataclass(frozen=True, order=True)
class ObjectInfo:
    """One stored object. `modified_s` is seconds since the epoch by the store's clock."""

    key: str
    size_bytes: int
    modified_s: float


class Upload(Protocol):
    """One large object on its way, invisible until complete() returns. Parts may come from several threads."""

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """Send part `number` (from 1). Every part but the last has the length agreed in start_upload.

        Sending a number again replaces it and must carry the same bytes. `crc32` of the data, where given, goes with it
        to a store that can verify it.
        """
        ...

    def complete(self) -> None:
        """Publish the parts as one object, replacing what was there. May be repeated after a TransientStorageError."""
        ...

    def abort(self) -> None:
        """Forget the parts. Idempotent."""
        ...


class ObjectStore(Protocol):
    """Objects under slash-separated keys below a root.

    No component of a key is empty or reserved (is_reserved), and no key is a folder of another. All methods may be
    called from several threads. All raise PermissionDenied, TransientStorageError, and StorageError for other refusals.
    """

    url: str

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """Store `data`, whole or not at all, replacing what was there. NotFound: there is no such bucket."""
        ...

    def create(self, key: str, data: Buffer) -> None:
        """Store `data` if there is nothing under `key`, else raise AlreadyExists. One of any number of racers wins."""
        ...

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """The bytes of [start, start + length), cut at the object's end as a slice is. Raises NotFound."""
        ...

    def stat(self, key: str) -> ObjectInfo:
        """Size and time of an object. Raises NotFound."""
        ...

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """Every object whose key begins with `prefix`, sorted by key. Unfinished uploads are not objects."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object. Idempotent: nothing there is success."""
        ...

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """Begin an object that is sent in parts of `part_bytes` each, the last one shorter or equal."""
        ...

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """Abort uploads whose key begins with `prefix` and that are older than that; how many there were.

        For what killed writers and lost answers leave behind. Choose an age no live upload reaches.
        """
        ...

    def close(self) -> None:
        """Let go of connections. Idempotent."""
        ...


def check_key(key: str) -> str:
    """`key`, proved to be one that every store can hold."""
    assert all(part and not is_reserved(part) for part in key.split("/")), f"not a key: {key!r}"
    return key


def is_reserved(part: str) -> bool:
    """Whether a component of a key means something else: unfinished files and parts, a network mount's leftovers."""
    return part in (".", "..", UPLOADS) or part.startswith(".nfs") or (part.startswith(".") and part.endswith(".tmp"))


def as_view(data: Buffer) -> memoryview:
    """`data` as flat unsigned bytes, without a copy."""
    return memoryview(data).cast("B")


def page_aligned(num_bytes: int) -> memoryview:
    """A new buffer that begins where a page of memory does: a device can take it as it is."""
    memory = bytearray(num_bytes + PAGE_BYTES)
    skipped = -ctypes.addressof(ctypes.c_char.from_buffer(memory)) % PAGE_BYTES
    return memoryview(memory)[skipped : skipped + num_bytes]


def check_parts(sizes: Mapping[int, int], part_bytes: int) -> int:
    """Total bytes of parts {number: bytes}, proved to be 1..n without a gap, all but the last `part_bytes` long."""
    assert sizes and sorted(sizes) == list(range(1, len(sizes) + 1)), f"parts are missing: {sorted(sizes)}"
    assert all(size == part_bytes for number, size in sizes.items() if number < len(sizes)), "a part is short"
    return sum(sizes.values())
