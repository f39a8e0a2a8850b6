"""Copies of an array taken in turn, more than a cache holds: whoever takes one finds it in memory, not in a cache.

A benchmark that reads the same array again measures the last-level cache, which holds half a gigabyte on some machines.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Floats

APART = 512  # values between the beginnings of arrays that are read and written together, modulo a page
_CACHES = 4  # the sum of the copies, in sizes of the last-level cache
_LINE = 16  # float32 in a line of the cache
_PAGE = 1024  # float32 in a page


class Rotation:
    """Copies of `x` (flat), as few as have `nbytes` together, and one at least; the first begins `apart` values into a page."""

    def __init__(self, x: Floats, nbytes: int, apart: int = 0) -> None:
        self._size = x.size
        count, width = max(1, -(-nbytes // x.nbytes)), -(-x.size // _LINE) * _LINE
        memory = np.empty(count * width + _PAGE + apart, np.float32)
        start = -(memory.ctypes.data // 4) % _PAGE + apart
        self._copies = memory[start : start + count * width].reshape(count, width)
        self._last = 0
        self._copies[:] = 0  # of memory that was never written, all pages may be one
        self._copies[:, : x.size] = x

    @property
    def nbytes(self) -> int:
        """Of all copies."""
        return self._copies.nbytes

    def take(self) -> Floats:
        """The copy that was not taken for longest."""
        self._last = (self._last + 1) % len(self._copies)
        return self._copies[self._last, : self._size]

    def fill(self, value: float) -> None:
        """Overwrite all copies."""
        self._copies.fill(value)


def beyond_cache(cache: int) -> int:
    """Bytes of copies to take in turn where the last-level cache has `cache` bytes."""
    return _CACHES * cache
