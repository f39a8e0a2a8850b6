"""A clock for deadlines that stands still while this process cannot listen.

A deadline limits the silence of another rank. While this process is stopped, starved of its core or busy with something long,
messages stay unread, and the other rank is not responsible for that time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SLICE = 1.0  # seconds: the longest wait, so that an overlong one is noticed
_LEAST = 0.2  # seconds to wait even after a deadline, for messages that came in while no thread listened
_OVERSHOOT = 0.5
_BUSY = 1.0


class Clock:
    """Seconds that count. `monotonic` may be replaced by another source of seconds that never fall."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lost = 0.0
        self._left = monotonic()  # when the last wait ended

    def now(self) -> float:
        """Return the seconds since an arbitrary moment, less the stretches that do not count."""
        return self._monotonic() - self._lost

    @contextmanager
    def listening(self, until: float) -> Iterator[float]:
        """Wrap a wait, and yield its maximum length in seconds: towards `until`, and never longer than a second.

        The time by which the wait exceeds that by more than half a second does not count, nor does the time since the last wait
        if it was more than a second.
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
