"""CRC-32 of a whole from the CRC-32s of its parts, so that no byte is summed twice. Pure."""

from collections.abc import Iterable
from functools import lru_cache

_POLYNOMIAL = 0xEDB88320  # of zlib.crc32, bits reflected: bit 31 is the coefficient of x^0
_ONE = 0x80000000
_X8 = 0x00800000  # x^8: one zero byte appended
_LENGTH_BITS = 48  # of the longest part


def combine(parts: Iterable[tuple[int, int]]) -> int:
    """CRC-32 of the concatenation of parts given as (crc32, bytes), in order; 0 for none. The first one costs nothing.

    Appending n zero bytes multiplies by x^(8n) modulo the polynomial, and CRC-32 is linear from there
    (M. Adler's crc32_combine in zlib rests on the same fact).
    """
    whole = 0
    for crc32, num_bytes in parts:
        whole = (_times(_power(num_bytes), whole) if whole else 0) ^ crc32
    return whole


@lru_cache(maxsize=1024)  # parts of an object have one length
def _power(num_bytes: int) -> int:
    """x^(8 * num_bytes)."""
    result = _ONE
    for bit, square in enumerate(_SQUARES):
        if num_bytes >> bit & 1:
            result = _times(square, result)
    return result


def _times(a: int, b: int) -> int:
    """Product of two polynomials modulo the CRC's."""
    product = 0
    for bit in range(31, -1, -1):
        if a >> bit & 1:
            product ^= b
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


def _squares() -> list[int]:
    """x^8 and what comes of it by squaring: x^16, x^32, ..."""
    found = [_X8]
    while len(found) < _LENGTH_BITS:
        found.append(_times(found[-1], found[-1]))
    return found


_SQUARES = _squares()
