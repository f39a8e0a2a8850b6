"""Cores of a host in virtual time, and the threads that work on them."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from psnode.jobs.simulating.disturbances import Standstill
from psnode.jobs.simulating.event_loop import EventLoop

_CLOSE = 1e-12  # times with this relative difference count as equal


class Cores(Protocol):
    """Cores of a host, on which work takes virtual time."""

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Begin work that takes `seconds` if it has a core for itself. Call `call` with `arguments` when the work is done."""


class FreeCores:
    """Cores of a host that has enough of them for all work, so that no work waits."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop = loop

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Begin work that takes `seconds`. Call `call` with `arguments` when the work is done."""
        self._loop.at(self._loop.now + seconds, call, *arguments)


class SharedCores:
    """The `count` cores of a host. All work that runs at the same time shares them equally, with at most one core for each.

    `crowded`: the speed of a core while all cores work, as in psnode.jobs.planning.fluid.simulation.Resource. `standstills`:
    pauses in which no work is done, in the order in which they begin. At every moment, all pieces of work have the same speed.
    So a piece of work that takes s seconds ends when every piece has got s seconds since this piece began.
    """

    def __init__(self, loop: EventLoop, count: int, crowded: float = 1.0, standstills: Sequence[Standstill] = ()) -> None:
        self._loop, self._count, self._crowded = loop, count, crowded
        self._work: list[tuple[float, int, Callable[..., object], tuple[object, ...]]] = []  # by the value of `_given` at its end
        self._numbers = itertools.count()
        self._given = self._since = self._speed = 0.0
        self._still = self._ended = False
        self._due = 0  # number of the valid event
        for still in standstills:
            loop.at(still.begin, self.stand, True)
            loop.at(still.end, self.stand, False)

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Begin work that takes `seconds` if it has a core for itself. Call `call` with `arguments` when the work is done."""
        self._give()
        heapq.heappush(self._work, (self._given + seconds, next(self._numbers), call, arguments))
        self._await()

    def end(self) -> None:
        """Stop all work for good."""
        self._ended = True
        self.stand(True)

    def stand(self, still: bool) -> None:
        """Stop all work at the present time if `still` is True; otherwise continue it."""
        self._give()
        self._still = still
        self._await()

    def _give(self) -> None:
        """Update `_given`, the seconds that each piece of work has got, to the present time."""
        self._given += (self._loop.now - self._since) * self._speed
        self._since = self._loop.now
        if not self._work:
            self._given = 0.0  # a pause resets rounding errors

    def _await(self) -> None:
        """Set the speed of all work, and schedule `_end` for the time at which the first work ends."""
        number = len(self._work)
        busy = min(number, self._count)
        slower = 1.0 - (1.0 - self._crowded) * max(busy - 1, 0) / max(self._count - 1, 1e-9)
        self._speed = 0.0 if self._still or self._ended or not number else min(1.0, self._count / number) * slower
        self._due += 1
        if self._speed:
            self._loop.at(self._since + max(0.0, self._work[0][0] - self._given) / self._speed, self._end, self._due)

    def _end(self, due: int) -> None:
        if due != self._due:
            return
        self._give()
        ended = []
        while self._work and self._work[0][0] - self._given <= _CLOSE * (1 + self._loop.now):
            ended.append(heapq.heappop(self._work))
        self._await()
        for _, _, call, arguments in ended:
            call(*arguments)


class WorkThread(Protocol):
    """A thread that does one piece of work after another, in the order in which they are queued."""

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Queue work that takes `seconds`. Call `call` with `arguments` when the work is done."""


class FreeThread:
    """A thread that never waits for a core."""

    def __init__(self, loop: EventLoop) -> None:
        self._loop, self._free = loop, 0.0

    def reserve(self, *seconds: float) -> float:
        """Queue pieces of work that take `seconds` each, and return the time at which the last one ends."""
        self._free = max(self._loop.now, self._free)
        for each in seconds:
            self._free += each
        return self._free

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Queue work that takes `seconds`. Call `call` with `arguments` when the work is done."""
        self._loop.at(self.reserve(seconds), call, *arguments)


class SharingThread:
    """A thread that shares cores with other work."""

    def __init__(self, cores: Cores) -> None:
        self._cores = cores
        self._waiting: deque[tuple[float, Callable[..., object], tuple[object, ...]]] = deque()

    def run(self, seconds: float, call: Callable[..., object], *arguments: object) -> None:
        """Queue work that takes `seconds`. Call `call` with `arguments` when the work is done."""
        self._waiting.append((seconds, call, arguments))
        if len(self._waiting) == 1:
            self._cores.run(seconds, self._end)

    def _end(self) -> None:
        _, call, arguments = self._waiting.popleft()
        if self._waiting:
            self._cores.run(self._waiting[0][0], self._end)
        call(*arguments)
