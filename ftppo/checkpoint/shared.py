"""Buffers that other processes of a machine can map: a copy is then handed over without being copied again.

Comes in: a size, or a place that another process tells of; goes out: a buffer, and whether it still holds what it held.
The memory lives for as long as anybody maps it, so it outlives the process that has filled it.
"""

import contextlib
import mmap
import os
import secrets
import stat
import weakref
from typing import Any, TypedDict

import numpy as np

from ftppo.storage.crc import crc32

HEAD_BYTES = mmap.PAGESIZE  # before the content; its first word is the stamp of what the content is
_OPEN = 0  # the stamp while it is being filled


class Place(TypedDict):
    """Where another process of this machine finds a buffer, and the stamp of what it is to find there."""

    pid: int
    fd: int
    stamp: int


class SharedBuffer(np.ndarray[tuple[int], np.dtype[np.uint8]]):
    """Its owner fills it, seals it, and later fills it again; others map it to read.

    Whoever maps it sees by the stamp whether it still holds what was announced, and by the CRC-32 whether it came to
    harm since: its owner may have died of writing where it should not.
    """

    _word: np.ndarray[tuple[int], np.dtype[np.uint64]]
    _fd: int
    _stamp: int
    _crc: int | None  # as announced, until it was checked

    def unseal(self) -> None:
        """About to be filled: from here on it is of no use to whoever has mapped it."""
        self._word[0] = self._stamp = _OPEN

    def seal(self) -> Place:
        """It is filled. Returns where others find it."""
        self._word[0] = self._stamp = 1 + secrets.randbits(62)
        return self.place

    @property
    def place(self) -> Place:
        """Where others find what it holds now."""
        return Place(pid=os.getpid(), fd=self._fd, stamp=self._stamp)

    @property
    def intact(self) -> bool:
        """Whether its owner has not begun to fill it anew."""
        return int(self._word[0]) == self._stamp != _OPEN

    @property
    def sound(self) -> bool:
        """Whether it is intact, and its bytes are those that were announced; read once for that."""
        if self.intact and self._crc is not None and crc32(self) == self._crc:
            self._crc = None
        return self.intact and self._crc is None


def share(num_bytes: int) -> SharedBuffer | None:
    """A buffer to fill, unsealed; None where the system has no such memory."""
    if not hasattr(os, "memfd_create"):
        return None
    with contextlib.suppress(OSError):
        fd = os.memfd_create("ftppo-snapshot", os.MFD_CLOEXEC)
        try:
            os.ftruncate(fd, HEAD_BYTES + num_bytes)
            made = _map(fd, num_bytes, writable=True)
        except BaseException:
            os.close(fd)
            raise
        made._fd, made._stamp, made._crc = fd, _OPEN, None
        weakref.finalize(made, os.close, fd)
        return made
    return None


def find(place: Any, num_bytes: int, crc: int) -> SharedBuffer | None:
    """What another process tells of, to read; None where it cannot be mapped, or is not what it is said to be."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        # The number may be of another process here, and its file anything: nothing is waited for, little trusted.
        fd = os.open(f"/proc/{int(place['pid'])}/fd/{int(place['fd'])}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size != HEAD_BYTES + num_bytes:
                return None
            found = _map(fd, num_bytes, writable=False)
        finally:
            os.close(fd)
        found._fd, found._stamp, found._crc = -1, int(place["stamp"]), crc
        return found if found.intact else None
    return None


def _map(fd: int, num_bytes: int, writable: bool) -> SharedBuffer:
    access = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    mapped = mmap.mmap(fd, HEAD_BYTES + num_bytes, mmap.MAP_SHARED, access)
    buffer = np.frombuffer(mapped, dtype=np.uint8, offset=HEAD_BYTES).view(SharedBuffer)
    buffer._word = np.frombuffer(mapped, dtype=np.uint64, count=1)
    return buffer
