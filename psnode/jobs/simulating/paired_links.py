"""The links of all ranks. A message uses both the link of its sender and the link of its receiver."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np

from psnode.jobs.simulating.event_loop import EventLoop
from psnode.jobs.simulating.shared_link import SharedLink
from psnode.plans.roles import MASTER

_CLOSE = 1e-12  # times with this relative difference count as equal


class LinksOfRanks(Protocol):
    """The links of all ranks of a job."""

    def send(self, source: int, target: int, nbytes: float, call: Callable[..., object], *arguments: object) -> None:
        """Carry a message over both links, and then call `call` with `arguments`. Do nothing if one of the ranks was cut."""

    def cut(self, rank: int) -> None:
        """Discard all messages from and to `rank` that the links have not carried yet, and all later ones."""


class HubLinks:
    """The links of ranks that exchange messages only with the master.

    Each of these ranks has one connection, which carries one message after another. So only the master's link determines the
    speed of messages. `weights`: the weight of the connection of each rank other than the master.
    """

    def __init__(self, loop: EventLoop, capacity: float | None, weights: Mapping[int, float]) -> None:
        self._inward, self._outward = SharedLink(loop, capacity, weights), SharedLink(loop, capacity, weights)

    def send(self, source: int, target: int, nbytes: float, call: Callable[..., object], *arguments: object) -> None:
        """Carry a message over the master's link, and then call `call` with `arguments`."""
        if target == MASTER:
            self._inward.send(source, nbytes, call, *arguments)
        else:
            self._outward.send(target, nbytes, call, *arguments)

    def cut(self, rank: int) -> None:
        """Discard all messages from and to `rank` that the links have not carried yet, and all later ones."""
        self._inward.cut(rank)
        self._outward.cut(rank)


class PairedLinks:
    """The links of `ranks` ranks, of `capacity` bytes per second each way; None: transfers cost no time.

    The connection from one rank to another carries one message after another. At every moment, the connections that use a
    direction of a link share it in proportion to their weights. A message gets the smaller of its shares of its two links, as
    in psnode.jobs.planning.fluid.simulation. `weight`: a function that returns the weight of the connection from one rank to
    another. The cost of an event is proportional to the number of connections that have carried a message.
    """

    def __init__(self, loop: EventLoop, capacity: float | None, ranks: int, weight: Callable[[int, int], float]) -> None:
        self._loop, self._capacity, self._ranks, self._weight = loop, capacity, ranks, weight
        self._connections: dict[tuple[int, int], int] = {}
        self._waiting: list[deque[tuple[float, Callable[..., object], tuple[object, ...]]]] = []
        self._ends = np.zeros((2, 0), np.int64)  # source and target of every connection
        self._weights = self._speed = np.zeros(0)
        self._left = np.zeros(0)  # bytes of the first message of every connection; infinite if there is none
        self._since = 0.0  # the time for which `_left` is valid
        self._cut: set[int] = set()
        self._changed = False
        self._due = 0  # number of the valid event

    def send(self, source: int, target: int, nbytes: float, call: Callable[..., object], *arguments: object) -> None:
        """Carry a message over both links, and then call `call` with `arguments`. Do nothing if one of the ranks was cut."""
        if source in self._cut or target in self._cut:
            return
        if self._capacity is None:
            call(*arguments)
            return
        connection = self._connection(source, target)
        self._waiting[connection].append((nbytes, call, arguments))
        if len(self._waiting[connection]) == 1:
            self._change()
            self._left[connection] = nbytes

    def cut(self, rank: int) -> None:
        """Discard all messages from and to `rank` that the links have not carried yet, and all later ones."""
        self._cut.add(rank)
        self._change()
        for way, connection in self._connections.items():
            if rank in way:
                self._waiting[connection].clear()
                self._left[connection] = math.inf

    def _connection(self, source: int, target: int) -> int:
        """Return the number of the connection from one rank to another."""
        number = self._connections.setdefault((source, target), len(self._connections))
        if number == len(self._waiting):
            self._waiting.append(deque())
            self._ends = np.column_stack([self._ends, (source, target)])
            self._weights = np.append(self._weights, self._weight(source, target))
            self._left, self._speed = np.append(self._left, math.inf), np.append(self._speed, 0.0)
        return number

    def _change(self) -> None:
        """Advance to the present time, and schedule `_settle` so that it runs after all changes of this moment."""
        self._advance()
        if not self._changed:
            self._changed = True
            self._due += 1
            self._loop.at(self._loop.now, self._settle, self._due)

    def _advance(self) -> None:
        if self._loop.now > self._since:
            self._left -= (self._loop.now - self._since) * self._speed
            self._since = self._loop.now

    def _settle(self, due: int) -> None:
        """End the messages that have been carried completely, and share the links anew among the others."""
        if due != self._due or self._capacity is None:
            return
        self._changed = False
        self._advance()
        calls = []
        for connection in np.flatnonzero(self._left <= self._speed * (_CLOSE * (1 + self._loop.now))):
            waiting = self._waiting[connection]
            calls.append(waiting.popleft())
            while waiting and not waiting[0][0]:
                calls.append(waiting.popleft())
            self._left[connection] = waiting[0][0] if waiting else math.inf
        self._share(self._capacity)
        for _, call, arguments in calls:
            call(*arguments)

    def _share(self, capacity: float) -> None:
        """Set the speeds of all messages, and schedule `_settle` for the time at which the first message ends."""
        active = self._left < math.inf
        weights = np.where(active, self._weights, 0.0)
        sent, received = (np.bincount(ends, weights, self._ranks)[ends] for ends in self._ends)
        self._speed = capacity * weights / np.maximum(np.maximum(sent, received), 1e-300)
        self._due += 1
        if active.any():
            seconds = float((self._left[active] / self._speed[active]).min())
            self._loop.at(self._loop.now + seconds, self._settle, self._due)
