"""A file that is written in parts, by several threads at once. Comes in: a path, parts; goes out: bytes on the disk.

Each part opens the file anew: one that is stuck while the others go on holds no handle but its own. Where the system or
the file system does not know O_DIRECT, fallocate or sync_file_range, the parts only take longer.
"""

import ctypes
import errno
import os
import threading
from pathlib import Path

from ftppo.storage.base import PAGE_BYTES

_AHEAD_PARTS = 4  # room for so many more is taken at once
_AHEAD_BYTES = 128 * 2**20  # or, in a file that has become long, for as much again, up to this
_SHARE_OF_FREE = 1 / 16  # of the disk's free space, as others write as well
UNSUPPORTED = {errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}
_O_DIRECT = getattr(os, "O_DIRECT", 0)  # Linux only
_WRITE_AND_WAIT = 7  # SYNC_FILE_RANGE_WAIT_BEFORE | _WRITE | _WAIT_AFTER

_libc = ctypes.CDLL(None, use_errno=True)
_sync_file_range = getattr(_libc, "sync_file_range", None)
if _sync_file_range is not None:
    _sync_file_range.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
_fallocate = getattr(_libc, "fallocate", None)  # os.posix_fallocate would write to every page where this is unknown
if _fallocate is not None:
    _fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


class PartFile:
    """An existing empty file, its parts written in any order. All methods raise OSError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._one_writes = threading.Lock()  # in the kernel writes that lengthen a file exclude each other, spinning
        self._room_bytes = 0  # the file has this size, with room for it on the disk
        self._may_reserve = True

    def write(self, offset: int, data: memoryview) -> None:
        """Write a part and return when the bytes have gone to the disk; `finish` does the rest.

        Waited for here and not once at the end: after a failed write the kernel drops the pages and the next sync
        succeeds, so the bytes must still be at hand to be written again. But a sync of each part would have all of them
        queue for the file system's journal.
        """
        if self._write_past_cache(offset, data):
            return
        handle = os.open(self.path, os.O_WRONLY)
        try:
            with self._one_writes:
                write_all(handle, offset, data)
            sync_range(handle, offset, len(data))
        finally:
            os.close(handle)

    def finish(self, num_bytes: int) -> None:
        """Cut the file to what was written and make durable its size, and where the parts lie."""
        handle = os.open(self.path, os.O_WRONLY)
        try:
            os.ftruncate(handle, num_bytes)  # where taking room has failed, it may have taken some
            os.fsync(handle)
        finally:
            os.close(handle)

    def _write_past_cache(self, offset: int, data: memoryview) -> bool:
        """Write straight from `data`; False where this is not possible.

        It costs a sixth of the processor time, and training beside it does not wait for a cache full of dirty pages.
        """
        if not _O_DIRECT or not data or offset % PAGE_BYTES or len(data) % PAGE_BYTES:
            return False
        try:
            handle = os.open(self.path, os.O_WRONLY | _O_DIRECT)
            try:
                self._write_directly(handle, offset, data)
            finally:
                os.close(handle)
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            return False  # the file system cannot, or `data` does not begin where a page does
        return True

    def _write_directly(self, handle: int, offset: int, data: memoryview) -> None:
        with self._one_writes:
            if not self._has_room(handle, offset + len(data), _AHEAD_PARTS * len(data)):
                write_all(handle, offset, data)
                return
        write_all(handle, offset, data)  # beside other parts, for the file does not become longer

    def _has_room(self, handle: int, end: int, least_bytes: int) -> bool:
        """Whether the file reaches to `end`. Takes as much room again for what comes next, `least_bytes` at least."""
        if _fallocate is not None and self._may_reserve and end > self._room_bytes:
            room_bytes = end + max(least_bytes, min(end, _AHEAD_BYTES))  # to take room waits for all parts under way
            disk = os.fstatvfs(handle)
            fits = room_bytes - self._room_bytes <= disk.f_bavail * disk.f_frsize * _SHARE_OF_FREE
            if fits and _fallocate(handle, 0, 0, room_bytes) == 0:
                self._room_bytes = room_bytes
            else:
                self._may_reserve = False  # what else is wrong shows when the part is written
        return end <= self._room_bytes


def sync_range(handle: int, offset: int, length: int) -> None:
    """Have these bytes of a file go to disk, and wait for it; all of the file where the system cannot do less."""
    if _sync_file_range is not None:
        if _sync_file_range(handle, offset, length, _WRITE_AND_WAIT) == 0:
            return
        number = ctypes.get_errno()
        if number not in UNSUPPORTED:
            raise OSError(number, os.strerror(number))
    os.fsync(handle)


def write_all(handle: int, offset: int, data: memoryview) -> None:
    """Write to an open file, in as many calls as it takes."""
    while data:
        count = os.pwrite(handle, data, offset)
        data, offset = data[count:], offset + count
