"""File system primitives that hold on network mounts too: folders, temporary files, durable publication.

Comes in: paths and bytes; goes out: files that are whole and on disk, or an OSError mapped to a typed StorageError.
"""

import errno
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ftppo.clock import Clock
from ftppo.errors import AlreadyExists, NotFound, PermissionDenied, StorageError, TransientStorageError
from ftppo.storage.parts import UNSUPPORTED, write_all

VISIBLE_S = 30.0  # longest wait for a folder that exists on the server and not yet on this client

_TEMP = re.compile(r"\.(.+)\.[0-9a-f]{12}\.tmp")
_CLAIM_ID = "0" * 12
_TRANSIENT = {
    errno.EIO, errno.ESTALE, errno.EINTR, errno.EAGAIN, errno.EBUSY, errno.ETIMEDOUT, errno.ENOLCK, errno.EREMOTEIO,
    errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ENOTCONN, errno.ENETDOWN, errno.ENETUNREACH,
    errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EMFILE, errno.ENFILE,
}  # fmt: skip
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_NO_HARD_LINKS = UNSUPPORTED | {errno.EPERM, errno.EMLINK}


@contextmanager
def typed_errors(what: str) -> Iterator[None]:
    """Raise an OSError inside as the StorageError it means, with the original as its cause."""
    try:
        yield
    except OSError as error:
        raise _error_type(error.errno)(f"{what}: {error}") from error


def _error_type(number: int | None) -> type[StorageError]:
    if number in _TRANSIENT:
        return TransientStorageError
    if number in _DENIED:
        return PermissionDenied
    return NotFound if number == errno.ENOENT else StorageError


def make_folder(path: Path, clock: Clock) -> None:
    """Have the folder and its parents, durably, whoever else makes them; waits a bounded time until it is visible."""
    if os.path.isdir(path):
        return
    missing = [folder for folder in (path, *path.parents) if not os.path.isdir(folder)]
    give_up, delay_s = clock.monotonic() + VISIBLE_S, 0.01
    while True:
        try:
            os.makedirs(path, exist_ok=True)
            break
        except (FileExistsError, FileNotFoundError):
            # a network mount may answer "exists" to mkdir and "is none" to stat for as long as it caches attributes
            if os.path.isdir(path):
                break
            if os.path.isfile(path) or clock.monotonic() >= give_up:
                raise
        clock.sleep(delay_s)
        delay_s = min(2 * delay_s, 1.0)
    for folder in missing:
        sync_folder(folder.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in UNSUPPORTED:  # some mounts cannot sync a folder: there is nothing more to do then
            raise
    finally:
        os.close(handle)


def write_whole(path: Path, data: memoryview) -> None:
    """Fill an existing empty file and return when it is on disk."""
    handle = os.open(path, os.O_WRONLY)
    try:
        write_all(handle, 0, data)
        os.fsync(handle)
    finally:
        os.close(handle)


def new_temp(path: Path, clock: Clock) -> Path:
    """An empty file of a fresh name beside `path`: in its folder, so that renaming it stays on one file system."""
    temp = path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")
    give_up = clock.monotonic() + VISIBLE_S
    while True:
        make_folder(path.parent, clock)
        try:
            os.close(os.open(temp, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return temp
        except FileNotFoundError:  # another process removed the folder as empty, or it is not visible yet
            if clock.monotonic() >= give_up:
                raise
        clock.sleep(0.01)


def temp_target(path: Path) -> Path | None:
    """What a temporary file was to become; None if `path` is no temporary file."""
    match = _TEMP.fullmatch(path.name)
    return path.with_name(match.group(1)) if match else None


def publish(temp: Path, path: Path) -> None:
    """Give a synced temporary file its name, replacing what was there, durably."""
    os.replace(temp, path)
    sync_folder(path.parent)


def publish_new(temp: Path, path: Path) -> None:
    """Give a synced temporary file its name if that is free, else raise AlreadyExists."""
    try:
        os.link(temp, path)
    except FileExistsError as error:
        # a network mount that sent the link twice reports the success of the first as the failure of the second
        if not path.exists() or not os.path.samefile(temp, path):
            raise AlreadyExists(f"{path} exists") from error
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        _publish_claimed(temp, path)
    sync_folder(path.parent)


def _publish_claimed(temp: Path, path: Path) -> None:
    """publish_new where there are no hard links: the name is taken under a claim file that only one can make."""
    claim = path.with_name(f".{path.name}.{_CLAIM_ID}.tmp")
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError as error:
        raise TransientStorageError(f"{path} is being created by another writer ({claim.name} exists)") from error
    try:
        if path.exists():
            raise AlreadyExists(f"{path} exists")
        os.replace(temp, path)
    finally:
        claim.unlink()


def remove(path: Path, root: Path) -> None:
    """Remove a file, if there is one, durably, and the folders below `root` that this leaves empty."""
    with suppress(FileNotFoundError, NotADirectoryError):
        path.unlink()
        sync_folder(path.parent)
    for folder in path.parents:
        if folder == root:
            return
        try:
            folder.rmdir()
        except FileNotFoundError:
            continue
        except OSError:  # not empty, or in use: somebody else's
            return
