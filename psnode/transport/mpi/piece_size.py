"""The size of the pieces in which large messages go to one rank, by the rate at which earlier ones have left."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

SECONDS = 0.01  # of a piece
LEAST_BYTES = 1 << 17
_PIECES = 8  # in one measurement of the rate
_MEASUREMENTS = 8  # of which the slowest counts
_WHOLE_PIECES = 4  # of a message that is not cut


class PieceSize:
    """Returns, when called, the bytes of the next piece, so that a piece takes about 10 ms, and none is below 128 KiB.

    While several ranks share a link, TCP shares it unevenly for seconds if each of them has megabytes in transit, and links
    to other ranks idle meanwhile. Small pieces share it evenly, but every piece takes processor time: on a fast link they are
    larger, and a message of a few pieces is not cut. The slowest of the last measurements counts, since bytes that follow a
    pause leave into the buffers of sockets, and the size at most doubles with each.
    `most`: the largest size. `clock`: returns seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self._most, self._clock = most, clock
        self._size = min(LEAST_BYTES, most)
        self._recent = deque([float(self._size)] * _MEASUREMENTS, maxlen=_MEASUREMENTS)  # bytes of a piece that would have fitted
        self._flying = self._bytes = 0
        self._since = 0.0

    def __call__(self) -> int:
        return self._size

    @property
    def whole(self) -> int:
        """The largest size, in bytes, of a message that is not cut."""
        return min(_WHOLE_PIECES * self._size, self._most)

    def began(self) -> None:
        """Note that a message begins to leave."""
        if not self._flying:
            self._since, self._bytes = self._clock(), 0
        self._flying += 1

    def left(self, nbytes: int) -> None:
        """Note that `nbytes`, of a message that began to leave, have left."""
        self._flying -= 1
        self._bytes += nbytes
        if self._bytes >= _PIECES * self._size:
            now = self._clock()
            self._recent.append(self._bytes * SECONDS / max(now - self._since, 1e-9))
            self._size = int(min(max(min(*self._recent, 2.0 * self._size), LEAST_BYTES), self._most))
            self._since, self._bytes = now, 0
