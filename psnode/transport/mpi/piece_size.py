"""The size of the pieces in which large messages go to one rank, derived from the rate at which earlier pieces have left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

SECONDS = 0.01  # duration of a piece
LEAST_BYTES = 1 << 17
_PIECES = 8  # number of pieces in one measurement of the rate
_MEASUREMENTS = 8  # number of last measurements, of which the slowest counts
_WHOLE_PIECES = 4  # a message of up to this number of pieces is not cut


class PieceSize:
    """Returns, when called, the size of the next piece in bytes. A piece takes about 10 ms and has at least 128 KiB.

    If several ranks with megabytes in transit share a link, TCP divides the link unevenly for seconds, while links to other
    ranks are idle. Small pieces divide a link evenly, but every piece takes processor time. Therefore pieces are larger on a
    fast link, and a message that would make only a few pieces is not cut.

    The size follows the slowest of the last measurements: after a pause, bytes only go into the buffers of sockets and seem
    fast. The size at most doubles with each measurement. `most`: the largest size. `clock`: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most, self._clock = most, clock
        self._size = min(LEAST_BYTES, most)
        self._recent = deque([float(self._size)] * _MEASUREMENTS, maxlen=_MEASUREMENTS)  # bytes that left in SECONDS
        self._flying = self._bytes = 0
        self._since = 0.0

    def __call__(self) -> int:
        return self._size

    @property
    def whole(self) -> int:
        """The largest size, in bytes, of a message that is not cut."""
        return min(_WHOLE_PIECES * self._size, self._most)

    def began(self) -> None:
        """Record that MPI begins to send a message."""
        if not self._flying:
            self._since, self._bytes = self._clock(), 0
        self._flying += 1

    def left(self, nbytes: int) -> None:
        """Record that an MPI message of `nbytes` bytes has left, see `began`."""
        self._flying -= 1
        self._bytes += nbytes
        if self._bytes >= _PIECES * self._size:
            now = self._clock()
            self._recent.append(self._bytes * SECONDS / max(now - self._since, 1e-9))
            self._size = int(min(max(min(*self._recent, 2.0 * self._size), LEAST_BYTES), self._most))
            self._since, self._bytes = now, 0
