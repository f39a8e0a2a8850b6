"""The lanes of a shard in virtual time."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable

from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.host_cores import Cores, FreeCores


class WorkLanes:
    """The `count` lanes of a shard. A lane does one piece of work at a time, and begins with groups of higher numbers.

    The lanes are those of psnode.exchange.shard.executor. `groups`: the shard's groups; by default the lanes take any groups.
    `cores`: the cores on which the lanes work; by default each lane has a core of its own.
    """

    def __init__(self, loop: EventLoop, count: int, *, groups: Iterable[int] = (), cores: Cores | None = None) -> None:
        self._loop, self._cores = loop, cores or FreeCores(loop)
        self._places = {group: place for place, group in enumerate(groups)}
        self._waiting: list[list[tuple[int, int, float, Callable[..., object], tuple[object, ...]]]] = [[] for _ in range(count)]
        self._busy = [False] * count
        self._begun = [0.0] * count
        self._numbers = itertools.count()

    def lane_of(self, group: int) -> int:
        """Return the number of the lane that works on a group."""
        return self._places.get(group, group) % len(self._waiting)

    def begun(self, group: int) -> float:
        """Return the time at which the lane of a group began its latest piece of work."""
        return self._begun[self.lane_of(group)]

    def submit(self, group: int, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Queue work on a group that takes `seconds`. Call `call` with `arguments` when the work is done."""
        lane = self.lane_of(group)
        heapq.heappush(self._waiting[lane], (-group, next(self._numbers), seconds, call, arguments))
        self._serve(lane)

    def _serve(self, lane: int) -> None:
        if self._waiting[lane] and not self._busy[lane]:
            self._busy[lane] = True
            _, _, seconds, call, arguments = heapq.heappop(self._waiting[lane])
            self._begun[lane] = self._loop.now
            self._cores.run(seconds, self._end, lane, call, arguments)

    def _end(self, lane: int, call: Callable[..., object], arguments: tuple[object, ...]) -> None:
        self._busy[lane] = False
        call(*arguments)
        self._serve(lane)
