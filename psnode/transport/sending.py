"""The steps of a send that all transports share: the check of the address, the layout in memory, and completion."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np

from psnode.errors import DeadlineExceededError, TransportError
from psnode.transport.base import MAX_TAG, Buffer, Bytes, Pending
from psnode.transport.pool import Pool, PooledBuffer


class Send(Pending):
    """A send that another thread completes with `finish`."""

    def __init__(self) -> None:
        self._finished = threading.Event()
        self._error: Exception | None = None

    @property
    def done(self) -> bool:
        return self._finished.is_set()

    def finish(self, error: Exception | None = None) -> None:
        """Mark the send as done, so that the buffers may be reused. With an `error`, every `wait` raises TransportError."""
        self._error = error
        self._finished.set()

    def wait(self, seconds: float) -> None:
        if not self._finished.wait(max(0.0, seconds)):
            raise DeadlineExceededError(f"a message was not sent within {seconds:g} s: the receiver does not take it")
        if self._error is not None:
            raise TransportError(f"a message was not sent: {self._error}") from self._error


def check_address(rank: int, tag: int, size: int) -> None:
    """Raise TransportError if `rank` is not a rank of a job of `size` ranks, or if the tag is out of range."""
    if not 0 <= rank < size:
        raise TransportError(f"rank is {rank}: a job of {size} has ranks 0..{size - 1}")
    if not 0 <= tag <= MAX_TAG:
        raise TransportError(f"tag is {tag}: tags are 0..{MAX_TAG}")


def lay_out(buffers: Sequence[Buffer], pool: Pool, *, copy: bool) -> PooledBuffer:
    """Return `buffers` end to end in one block of `pool`.

    A single contiguous buffer is used without a copy, unless `copy` is True.
    """
    parts = [_as_bytes(buffer) for buffer in buffers]
    if len(parts) == 1 and not copy:
        return PooledBuffer(parts[0], _nothing)
    block = pool.take(sum(part.size for part in parts))
    start = 0
    for part in parts:
        block.data[start : start + part.size] = part
        start += part.size
    return block


def _as_bytes(buffer: Buffer) -> Bytes:
    try:
        return np.frombuffer(buffer, np.uint8)
    except (ValueError, BufferError):  # not contiguous
        return np.ascontiguousarray(buffer).reshape(-1).view(np.uint8)


def _nothing() -> None:
    """Do nothing. This is the `release` of a block that consists of the sender's own memory."""
