"""One direction of a link that several connections share by weight."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Mapping

from psnode.jobs.simulating.event_loop import EventLoop

_CLOSE = 1e-12  # times with this relative difference count as equal


class SharedLink:
    """One direction of a link of `capacity` bytes per second; None: transfers cost no time. `weights`: the weight of each
    connection.

    A connection carries one message after another, and the connections share the link in proportion to their weights.
    While the set of active connections stays the same, a message of s bytes on a connection of weight w ends when the link
    could have given s / w bytes to a connection of weight 1 since the message began. So the cost of an event is
    logarithmic in the number of connections. This is the virtual time of A. K. Parekh and R. G. Gallager, "A generalized
    processor sharing approach to flow control in integrated services networks: the single-node case", IEEE/ACM
    Transactions on Networking 1, 1993.
    """

    def __init__(self, loop: EventLoop, capacity: float | None, weights: Mapping[int, float]) -> None:
        self._loop, self._capacity, self._weights = loop, capacity, weights
        self._waiting: dict[int, deque[tuple[float, Callable[..., object], tuple[object, ...]]]] = {
            connection: deque() for connection in weights
        }
        self._ends: list[tuple[float, int, int]] = []  # (value of `_given` at its end, number, connection)
        self._numbers = itertools.count()
        self._given = 0.0  # bytes for a connection of weight 1 since the link was idle
        self._since = 0.0  # the time for which `_given` is valid
        self._weight = 0.0  # sum of the weights of all messages on the link
        self._due = math.inf  # time of the next event

    def send(self, connection: int, nbytes: float, call: Callable[..., object], *arguments: object) -> None:
        """Carry a message, and then call `call` with `arguments`. Do nothing if the connection was cut."""
        waiting = self._waiting.get(connection)
        if waiting is None:
            return
        if self._capacity is None:
            call(*arguments)
            return
        waiting.append((nbytes, call, arguments))
        if len(waiting) == 1:
            self._give()
            self._begin(connection, nbytes)
            self._await(self._capacity)

    def cut(self, connection: int) -> None:
        """Discard all messages of a connection that the link has not carried yet, and all later ones."""
        waiting = self._waiting.pop(connection, None)
        if waiting and self._capacity is not None:
            self._give()
            self._weight -= self._weights[connection]
            self._ends = [end for end in self._ends if end[2] != connection]
            heapq.heapify(self._ends)
            self._await(self._capacity)

    def _begin(self, connection: int, nbytes: float) -> None:
        weight = self._weights[connection]
        self._weight += weight
        heapq.heappush(self._ends, (self._given + nbytes / weight, next(self._numbers), connection))

    def _give(self) -> None:
        """Update `_given`, the bytes for a connection of weight 1, to the present time."""
        if not self._ends:
            self._given = self._weight = 0.0  # a pause resets rounding errors
        elif self._capacity is not None:
            self._given += (self._loop.now - self._since) * self._capacity / self._weight
        self._since = self._loop.now

    def _await(self, capacity: float) -> None:
        """Schedule a call of `_end` for the time at which the next message ends, unless an earlier call is scheduled.

        If the earlier call finds that no message has ended, it schedules `_end` again.
        """
        if self._ends:
            time = self._since + max(0.0, self._ends[0][0] - self._given) * self._weight / capacity
            if time < self._due:
                self._due = time
                self._loop.at(time, self._end, time)

    def _end(self, due: float) -> None:
        if due != self._due or self._capacity is None:
            return
        self._due = math.inf
        self._give()
        ended = []
        while self._ends and (self._ends[0][0] - self._given) * self._weight <= _CLOSE * (1 + self._loop.now) * self._capacity:
            _, _, connection = heapq.heappop(self._ends)
            self._weight -= self._weights[connection]
            ended.append(connection)
        calls = []
        for connection in ended:
            waiting = self._waiting[connection]
            _, call, arguments = waiting.popleft()
            calls.append((call, arguments))
            if waiting:
                self._begin(connection, waiting[0][0])
        self._await(self._capacity)
        for call, arguments in calls:
            call(*arguments)
