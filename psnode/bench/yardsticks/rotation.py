"""Copies of an array, taken in turn. Together they are larger than a cache, so that each copy is read from memory.

A benchmark that reads the same array again measures only the last-level cache, which has half a gigabyte on some machines.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats

APART = 512  # distance in values, modulo a page, between the beginnings of an array that is read and one that is written
_CACHES = 4  # total size of the copies, in sizes of the last-level cache
_LINE = 16  # float32 values in a cache line
_PAGE = 1024  # float32 values in a page


class Rotation:
    """Copies of the flat array `x`: the fewest whose total size is at least `nbytes`.

    The first copy begins `apart` values after the beginning of a page.
    """

    def __init__(self, x: Floats, nbytes: int, apart: int = 0) -> None:
        self._size = x.size
        count, width = max(1, -(-nbytes // x.nbytes)), -(-x.size // _LINE) * _LINE
        memory = np.empty(count * width + _PAGE + apart, np.float32)
        start = -(memory.ctypes.data // 4) % _PAGE + apart
        self._copies = memory[start : start + count * width].reshape(count, width)
        self._last = 0
        self._copies[:] = 0  # unwritten pages may all be the same physical page
        self._copies[:, : x.size] = x

    @property
    def nbytes(self) -> int:
        """Bytes of all copies, padding included."""
        return self._copies.nbytes

    def take(self) -> Floats:
        """Return the copy that was taken longest ago."""
        self._last = (self._last + 1) % len(self._copies)
        return self._copies[self._last, : self._size]

    def fill(self, value: float) -> None:
        """Overwrite all copies with `value`."""
        self._copies.fill(value)


def beyond_cache(cache: int) -> int:
    """Return a total size of copies, in bytes, that is well above a last-level cache of `cache` bytes."""
    return _CACHES * cache
