"""The master's lanes in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

from psnode.jobs.simulating.event_loop import EventLoop


class WorkLanes:
    """The master's lanes. Each lane does one piece of work at a time, later groups first (psnode.exchange.shard.executor)."""

    def __init__(self, loop: EventLoop, count: int) -> None:
        self._loop = loop
        self._waiting: list[list[tuple[int, int, float, Callable[..., object], tuple[object, ...]]]] = [[] for _ in range(count)]
        self._busy = [False] * count
        self._numbers = itertools.count()

    def lane_of(self, group: int) -> int:
        """Return the number of the lane that works on a group."""
        return group % len(self._waiting)

    def submit(self, group: int, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Queue work on a group, and call a function when the work is done."""
        lane = self.lane_of(group)
        heapq.heappush(self._waiting[lane], (-group, next(self._numbers), seconds, call, arguments))
        self._serve(lane)

    def _serve(self, lane: int) -> None:
        if self._waiting[lane] and not self._busy[lane]:
            self._busy[lane] = True
            _, _, seconds, call, arguments = heapq.heappop(self._waiting[lane])
            self._loop.at(self._loop.now + seconds, self._end, lane, call, arguments)

    def _end(self, lane: int, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._busy[lane] = False
        call(*arguments)
        self._serve(lane)
