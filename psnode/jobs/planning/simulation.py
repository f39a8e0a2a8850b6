"""Duration of a graph of activities that share cores and links.

An activity is a piece of work on at most two resources, such as a second of a core, or bytes on the two links that a message
crosses. It begins when all activities that it follows have ended and its queue has no more urgent activity. At every moment, the
activities on a resource share it in proportion to their weights, but no activity gets more than the resource's maximum for one
activity. This is the fluid model of H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications
and platforms", J. Parallel Distrib. Comput. 74, 2014.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.errors import PsnodeError


@dataclass(frozen=True)
class Resource:
    """A resource shared by activities. `capacity`: work per second for all together. `most`: maximum work per second for one.

    `crowded`: the rate of one activity, relative to `most`, while the whole capacity is in use. Between one activity and the
    whole capacity the rate falls linearly. Cores that share caches or memory have a value below 1.

    `burst`: work that is done immediately after a pause, as in a token bucket: unused capacity is saved up to this amount.
    """

    capacity: float
    most: float = np.inf
    crowded: float = 1.0
    burst: float = 0.0

    @property
    def full(self) -> float:
        """The work per second while the whole capacity is in use."""
        return self.capacity * self.crowded


class Graph:
    """A graph of activities. Its methods return numbers, by which resources, queues and activities are named."""

    def __init__(self) -> None:
        self.resources: list[Resource] = [Resource(1e300)]
        self.work: list[float] = []
        self.places: list[tuple[int, int]] = []
        self.weights: list[float] = []
        self.served_by: list[int | None] = []  # the queue of each activity
        self.urgency: list[float] = []
        self.follows: list[tuple[int, ...]] = []
        self.kinds: list[str] = []
        self.queues = 0

    def resource(self, resource: Resource) -> int:
        """Add a resource."""
        self.resources.append(resource)
        return len(self.resources) - 1

    def queue(self) -> int:
        """Add a queue, such as a thread or a connection.

        Its activities run one at a time; the lowest urgency number runs first.
        """
        self.queues += 1
        return self.queues - 1

    def add(
        self,
        kind: str,
        work: float,
        on: Sequence[int],
        follows: Iterable[int] = (),
        *,
        queue: int | None = None,
        urgency: float = 0.0,
        weight: float = 1.0,
    ) -> int:
        """Add an activity of `work` on one or two resources, or on none if it takes no time. `kind`: its name for `path`."""
        first, second = (*on, 0, 0)[:2]
        self.kinds.append(kind)
        self.work.append(work)
        self.places.append((first, second))
        self.weights.append(weight)
        self.served_by.append(queue)
        self.urgency.append(urgency)
        self.follows.append(tuple(follows))
        return len(self.work) - 1

    def run(self) -> ActivityTimes:
        """Return the begin and end of every activity. Raises PsnodeError if activities wait for each other in a circle."""
        return _Run(self).times()


@dataclass(frozen=True)
class ActivityTimes:
    """Times of all activities in seconds. `work` and `places`: those of the graph.

    `cause`: for each activity, the activity whose end allowed it to begin, or -1 if it began at the start.
    """

    begin: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    cause: npt.NDArray[np.int64]
    work: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]

    def load(self, resource: int, start: float, stop: float) -> float:
        """Return the work on `resource` between two times. The work of an activity is spread evenly over its duration."""
        here = (self.places == resource).any(axis=1) & (self.work > 0)
        begin, end = self.begin[here], self.end[here]
        inside = np.clip(np.minimum(end, stop) - np.maximum(begin, start), 0, None)
        return float((self.work[here] * inside / np.maximum(end - begin, 1e-12)).sum())

    def path(self, last: int, start: float, kinds: Sequence[str]) -> dict[str, float]:
        """Return the chain of causes from time `start` to the end of activity `last`, as the seconds of each kind of activity."""
        found: dict[str, float] = {}
        while last >= 0 and self.end[last] > start:
            inside = self.end[last] - max(self.begin[last], start)
            found[kinds[last]] = found.get(kinds[last], 0.0) + float(inside)
            last = int(self.cause[last])
        return found


class _Run:
    """One run over the graph, from event to event.

    An event is the end of the activity that finishes first at its present rate.
    """

    def __init__(self, graph: Graph) -> None:
        count = len(graph.work)
        self._work, self._places = np.array(graph.work, float), np.array(graph.places, np.int64).reshape(count, 2)
        self._weights = np.array(graph.weights, float)
        self._queue, self._urgency = graph.served_by, graph.urgency
        self._capacity = np.array([each.capacity for each in graph.resources])
        self._most = np.array([each.most for each in graph.resources])
        self._crowded = np.array([each.crowded for each in graph.resources])
        self._room = np.array([each.capacity / each.most if each.most < np.inf else 1.0 for each in graph.resources])
        self._burst = np.array([each.burst for each in graph.resources])
        self._saved = self._burst.copy()  # unused capacity that a burst may use
        self._missing = [len(each) for each in graph.follows]
        self._next: list[list[int]] = [[] for _ in range(count)]
        for index, each in enumerate(graph.follows):
            for earlier in each:
                self._next[earlier].append(index)
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(graph.queues)]
        self._taken = [False] * graph.queues
        self._begin, self._end, self._cause = np.full(count, np.nan), np.full(count, np.nan), np.full(count, -1)
        self._over = -1  # the activity that has just ended
        self._now = 0.0
        self._ready: list[int] = []  # activities that begin at this moment
        self._unserved: dict[int, int] = {}  # queues that may have an activity to begin, and the activity whose end allows it
        self._active: list[int] = []
        self._left = np.zeros(0)

    def times(self) -> ActivityTimes:
        """Run to the end."""
        for index, missing in enumerate(self._missing):
            if not missing:
                self._release(index)
        while self._start() or self._active:
            self._advance()
        if np.isnan(self._end).any():
            raise PsnodeError("activities of the model wait for each other")
        return ActivityTimes(self._begin, self._end, self._cause, self._work, self._places)

    def _release(self, index: int) -> None:
        """Record that all activities before `index` have ended."""
        queue = self._queue[index]
        if queue is None:
            self._cause[index] = self._over
            self._ready.append(index)
        else:
            heapq.heappush(self._waiting[queue], (self._urgency[index], index))
            self._unserved.setdefault(queue, self._over)

    def _start(self) -> bool:
        """Begin all activities that are ready, and end those without work immediately.

        Return True if any activity with work began.
        """
        begun = list[int]()
        while self._ready or self._unserved:
            while self._ready:
                index = self._ready.pop()
                self._begin[index] = self._now
                if self._work[index] > 0:
                    begun.append(index)
                else:
                    self._finish(index)
            if self._unserved:
                self._serve(*self._unserved.popitem())
        if begun:
            self._active += begun
            self._left = np.concatenate([self._left, self._work[begun]])
            self._spend()
        return bool(begun)

    def _spend(self) -> None:
        """Do work immediately, as far as all resources of an activity have saved capacity."""
        if not self._burst.any():
            return
        places = self._places[self._active]
        parts = self._saved / np.maximum(self._counts(places), 1)
        parts[0] = np.inf  # the second place of activities that use only one resource
        done = np.minimum(parts[places].min(axis=1), self._left * (1 - 1e-9))
        self._left = self._left - done
        self._saved -= np.where(self._burst, np.bincount(places.ravel(), np.repeat(done, 2), len(self._saved)), 0.0)

    def _counts(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the number of activities on each resource."""
        return np.bincount(places.ravel(), minlength=len(self._capacity))

    def _speeds(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Return the work per second of the active activities."""
        weights = self._weights[self._active]
        sums = np.bincount(places.ravel(), np.repeat(weights, 2), len(self._capacity))
        busy = np.minimum(self._counts(places), self._room)
        slower = 1.0 - (1.0 - self._crowded) * np.maximum(busy - 1, 0) / np.maximum(self._room - 1, 1e-9)
        shares = self._capacity[places] * (weights[:, None] / sums[places])
        found: npt.NDArray[np.float64] = (np.minimum(self._most[places], shares) * slower[places]).min(axis=1)
        return found

    def _serve(self, queue: int, cause: int) -> None:
        """Begin the most urgent waiting activity of a queue, if the queue is free and an activity waits."""
        if not self._taken[queue] and self._waiting[queue]:
            self._taken[queue] = True
            index = heapq.heappop(self._waiting[queue])[1]
            self._cause[index] = cause
            self._ready.append(index)

    def _finish(self, index: int) -> None:
        self._end[index], self._over = self._now, index
        if (queue := self._queue[index]) is not None:
            self._taken[queue] = False
            self._unserved[queue] = index
        for later in self._next[index]:
            self._missing[later] -= 1
            if not self._missing[later]:
                self._release(later)

    def _advance(self) -> None:
        """Advance to the next moment at which an activity ends."""
        places = self._places[self._active]
        speed = self._speeds(places)
        needed = self._left / speed
        step = needed.min()
        self._now += float(step)
        if self._burst.any():
            used = np.bincount(places.ravel(), np.repeat(speed, 2), len(self._saved))
            self._saved = np.minimum(self._burst, self._saved + np.where(self._burst, self._capacity - used, 0.0).clip(0) * step)
        done = needed <= step * (1 + 1e-12)
        self._left = (self._left - speed * step)[~done]
        ended = [index for index, over in zip(self._active, done, strict=True) if over]
        self._active = [index for index, over in zip(self._active, done, strict=True) if not over]
        for index in ended:
            self._finish(index)
