"""CRC-32, the one of zlib and of S3, as fast as memory is read. Comes in: bytes, or sums of parts; goes out: a sum."""

from collections.abc import Iterable

from isal.isal_zlib import crc32, crc32_combine

__all__ = ["combine", "crc32"]


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of parts given as (crc32, bytes), in order, without their bytes; 0 for none."""
    whole = 0
    for one, num_bytes in parts:
        whole = crc32_combine(whole, one, num_bytes)
    return whole
