"""Virtual time: events in the order of their times."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class EventLoop:
    """Calls functions at virtual times, those of equal times in the order of `at`. `now`: the present time in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []
        self._numbers = itertools.count()
        self._over = False

    def at(self, time: float, call: Callable[..., object], *arguments: object) -> None:
        """Call a function at `time`, which is not before the present time."""
        heapq.heappush(self._events, (time, next(self._numbers), call, arguments))

    def stop(self) -> None:
        """Make `run` return after the present event."""
        self._over = True

    def run(self) -> bool:
        """Run until `stop` is called. Return False if no event is left before that."""
        while self._events and not self._over:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        return self._over
