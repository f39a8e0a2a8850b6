"""Memory for received messages. It is kept for reuse, since the first use of a page is many times slower than later uses."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from psnode.transport.base import Bytes

ALIGNMENT = 64
_SMALLEST = 4096


class PooledBuffer(NamedTuple):
    """A block from a pool. `data` has exactly the requested length. `release()` returns the block; repeated calls do nothing."""

    data: Bytes
    release: Callable[[], None]


class Pool:
    """A thread-safe pool of blocks, whose size classes are a quarter of a power of two apart.

    The pool holds no reference to blocks in use, so a block that is never released is garbage-collected like any other array. At
    most `limit` bytes of released blocks are kept.
    """

    def __init__(self, limit: int) -> None:
        self._free: dict[int, list[Bytes]] = {}
        self._kept = 0
        self._limit = limit
        self._lock = threading.Lock()

    @property
    def kept(self) -> int:
        """The bytes in released blocks that are kept for reuse."""
        return self._kept

    def take(self, nbytes: int) -> PooledBuffer:
        """Return a block of `nbytes` bytes with arbitrary contents. Blocks below one page do not come from the pool."""
        if nbytes < _SMALLEST:
            return PooledBuffer(np.empty(nbytes, np.uint8), _nothing)
        size = size_class(nbytes)
        with self._lock:
            free = self._free.get(size)
            memory = free.pop() if free else None
            if memory is not None:
                self._kept -= size
        if memory is None:
            memory = _aligned(size)
        return PooledBuffer(memory[:nbytes], _Return(self, memory))

    def give(self, memory: Bytes) -> None:
        """Keep a whole block for reuse, or drop it if `limit` would be exceeded."""
        with self._lock:
            if self._kept + memory.size <= self._limit:
                self._free.setdefault(memory.size, []).append(memory)
                self._kept += memory.size


class _Return:
    """The `release` of a block. The first call returns the block to the pool, and later calls do nothing."""

    __slots__ = ("_memory", "_pool")

    def __init__(self, pool: Pool, memory: Bytes) -> None:
        self._pool = pool
        self._memory: list[Bytes] = [memory]

    def __call__(self) -> None:
        try:
            memory = self._memory.pop()  # atomic, so that two simultaneous releases return the block only once
        except IndexError:
            return
        self._pool.give(memory)


def size_class(nbytes: int) -> int:
    """Return the smallest number k * 2**e >= nbytes with k in 4..7. It is at most a quarter larger than `nbytes`."""
    step = 1 << max(0, (nbytes - 1).bit_length() - 3)
    return -(-nbytes // step) * step


def _aligned(nbytes: int) -> Bytes:
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + nbytes]


def _nothing() -> None:
    """Do nothing. This is the `release` of a small block, which the garbage collector frees."""
