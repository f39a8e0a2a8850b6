"""Virtual time: a loop that handles events in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class EventLoop:
    """A loop that calls functions at virtual times, in the order of these times. `now`: the present virtual time in seconds.

    Functions with the same time are called in the order in which they were scheduled.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._numbers = itertools.count()
        self._over = False

    def at(self, time: float, call: Callable[..., object], *arguments: object) -> None:
        """Schedule a call of a function at `time`, which must not be before the present time."""
        heapq.heappush(self._events, (time, next(self._numbers), call, arguments))

    def stop(self) -> None:
        """Make `run` return after the event that is being handled."""
        self._over = True

    def run(self) -> bool:
        """Handle events until `stop` is called. Return False if no event is left although `stop` has not been called."""
        while self._events and not self._over:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        return self._over
