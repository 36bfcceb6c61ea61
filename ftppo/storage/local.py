"""A store in a folder, local or on a network mount. Comes in: keys and bytes; goes out: one file an object.

An object is written beside its place under a hidden name, synced, and then renamed (put) or linked (create) into it.
"""

import os
from collections.abc import Buffer, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from ftppo.clock import Clock, SystemClock
from ftppo.errors import NotFound, StorageError
from ftppo.storage import folder
from ftppo.storage.base import ObjectInfo, Upload, as_view, check_key, check_parts, is_reserved
from ftppo.storage.parts import PartFile


class LocalStore:
    """Files below `root`, which is made when first written to."""

    def __init__(self, root: Path, clock: Clock | None = None) -> None:
        self.root = Path(os.path.abspath(root))
        self.url = str(self.root)
        self._clock = clock or SystemClock()

    def put(self, key: str, data: Buffer, crc32: int | None = None) -> None:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"writing {path}"):
            temp = folder.new_temp(path, self._clock)
            try:
                folder.write_whole(temp, as_view(data))
                folder.publish(temp, path)
            finally:
                temp.unlink(missing_ok=True)

    def create(self, key: str, data: Buffer) -> None:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"creating {path}"):
            temp = folder.new_temp(path, self._clock)
            try:
                folder.write_whole(temp, as_view(data))
                folder.publish_new(temp, path)
            finally:
                temp.unlink(missing_ok=True)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"reading {path}"):
            self._find(path)
            with open(path, "rb") as file:
                file.seek(start)
                return file.read(-1 if length is None else length)

    def stat(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"looking at {path}"):
            self._find(path)
            status = path.stat()
        return ObjectInfo(key, status.st_size, status.st_mtime)

    def list(self, prefix: str = "") -> Sequence[ObjectInfo]:
        """See ObjectStore."""
        with folder.typed_errors(f"listing {self.root / prefix}"):
            return sorted(self._infos(prefix))

    def delete(self, key: str) -> None:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"deleting {path}"):
            folder.remove(path, self.root)

    def start_upload(self, key: str, part_bytes: int) -> Upload:
        """See ObjectStore."""
        path = self._path(key)
        with folder.typed_errors(f"starting {path}"):
            return _LocalUpload(path, folder.new_temp(path, self._clock), self.root, part_bytes)

    def sweep_uploads(self, prefix: str, older_than_s: float) -> int:
        """See ObjectStore."""
        oldest_s, swept = self._clock.now() - older_than_s, 0
        with folder.typed_errors(f"sweeping {self.root / prefix}"):
            for entry in self._entries(prefix):
                target = folder.temp_target(Path(entry.path))
                if target and self._key(target).startswith(prefix) and _modified_s(entry) <= oldest_s:
                    folder.remove(Path(entry.path), self.root)
                    swept += 1
        return swept

    def close(self) -> None:
        """See ObjectStore."""

    def _path(self, key: str) -> Path:
        return self.root / check_key(key)

    def _key(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _find(self, path: Path) -> None:
        """Raise NotFound if there is no file."""
        if path.is_file():
            return
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path.parent):
            pass  # a network mount caches "no such file"; opening the folder makes it ask the server again
        if not path.is_file():
            raise NotFound(f"{path}: no such object")

    def _infos(self, prefix: str) -> Iterator[ObjectInfo]:
        for entry in self._entries(prefix):
            key = self._key(Path(entry.path))
            if is_reserved(entry.name) or not key.startswith(prefix):
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:  # deleted while we look
                continue
            yield ObjectInfo(key, status.st_size, status.st_mtime)

    def _entries(self, prefix: str) -> Iterator[os.DirEntry[str]]:
        """Every file, hidden ones too, below the deepest folder that `prefix` names."""
        folders = [self.root / prefix.rpartition("/")[0]]
        while folders:
            try:
                with os.scandir(folders.pop()) as entries:
                    found = list(entries)
            except (FileNotFoundError, NotADirectoryError):  # never made, or deleted while we look
                continue
            folders += [Path(entry.path) for entry in found if entry.is_dir() and not is_reserved(entry.name)]
            yield from (entry for entry in found if not entry.is_dir())


def _modified_s(entry: os.DirEntry[str]) -> float:
    try:
        return entry.stat().st_mtime
    except FileNotFoundError:  # published while we look: as young as can be
        return float("inf")


class _LocalUpload:
    """Parts in one hidden file, each at its place and gone to disk before part() returns; complete() syncs the file."""

    def __init__(self, path: Path, temp: Path, root: Path, part_bytes: int) -> None:
        self._path, self._temp, self._root, self._part_bytes = path, temp, root, part_bytes
        self._file = PartFile(temp)
        self._sizes: dict[int, int] = {}

    def part(self, number: int, data: Buffer, crc32: int | None = None) -> None:
        """See Upload."""
        view = as_view(data)
        with folder.typed_errors(f"writing part {number} of {self._path}"):
            self._file.write((number - 1) * self._part_bytes, view)
        self._sizes[number] = len(view)

    def complete(self) -> None:
        """See Upload."""
        total_bytes = check_parts(self._sizes, self._part_bytes)
        with folder.typed_errors(f"publishing {self._path}"):
            if self._temp.exists():
                self._check_size(total_bytes)
                self._file.finish(total_bytes)
                folder.publish(self._temp, self._path)
            else:  # a first complete() renamed it and then failed, or it was swept
                folder.sync_folder(self._path.parent)
                if self._path.stat().st_size != total_bytes:
                    raise StorageError(f"the unfinished file of {self._path} is gone")

    def abort(self) -> None:
        """See Upload."""
        with folder.typed_errors(f"aborting {self._path}"):
            folder.remove(self._temp, self._root)

    def _check_size(self, total_bytes: int) -> None:
        size = self._temp.stat().st_size
        if size < total_bytes:  # as a rule it is longer, with room for more parts
            raise StorageError(f"{self._path} has {size} bytes where {total_bytes} were written")
