"""A clock for deadlines that stops while this process cannot listen.

A deadline limits the time for which another rank may be silent. While this process is stopped, has no core or is busy with a
long operation, messages stay unread. The other rank is not responsible for this time, so the clock does not count it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SLICE = 1.0  # longest wait in seconds; waits are short so that the clock notices a wait that takes too long
_LEAST = 0.2  # seconds to wait even after a deadline, for messages that came while no thread listened
_OVERSHOOT = 0.5  # if a wait exceeds its length by more seconds than this, the excess does not count
_BUSY = 1.0  # if there are more seconds than this between two waits, the time between them does not count


class Clock:
    """Counts the seconds in which this process can listen. `monotonic`: the source of time, in seconds that never decrease."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lost = 0.0
        self._left = monotonic()  # time at which the last wait ended

    def now(self) -> float:
        """Return the counted seconds since an arbitrary moment. Periods in which this process could not listen are left out."""
        return self._monotonic() - self._lost

    @contextmanager
    def listening(self, until: float) -> Iterator[float]:
        """Return a context for a wait. It yields the maximum length of the wait: the seconds until `until`, between 0.2 and 1.

        If the wait takes over half a second longer than that, the excess does not count. If the last wait ended more than a
        second ago, the time between the two waits does not count either.
        """
        begun = self._monotonic()
        if begun - self._left > _BUSY:
            self._lost += begun - self._left
        seconds = min(_SLICE, max(_LEAST, until - self.now()))
        try:
            yield seconds
        finally:
            self._left = self._monotonic()
            if self._left - begun > seconds + _OVERSHOOT:
                self._lost += self._left - begun - seconds
