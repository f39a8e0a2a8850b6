"""Duration of a graph of activities that share cores and links.

An activity is a piece of work on at most two resources, such as a second of a core, or bytes on the two links that a message
crosses. It begins when all activities that it follows have ended and its queue has nothing more urgent. The activities of a
resource share it equally at every moment, but none gets more than the resource gives to one. This is the fluid model of
H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed applications and platforms", J. Parallel Distrib.
Comput. 74, 2014.
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
    """A resource shared by activities. `capacity`: work per second for all together. `most`: work per second for one.

    `crowded`: the rate of one activity, relative to `most`, while the whole capacity is in use; between one activity and the
    whole capacity the rate falls linearly. Cores that share caches or memory have a value below 1.
    """

    name: str
    capacity: float
    most: float = np.inf
    crowded: float = 1.0

    @property
    def full(self) -> float:
        """The work per second while the whole capacity is in use."""
        return self.capacity * self.crowded

    def rate(self, active: int) -> float:
        """Return the work per second of each of `active` activities."""
        places = self.capacity / self.most if self.most < np.inf else 1.0
        busy = min(active, places)
        slower = 1.0 - (1.0 - self.crowded) * (busy - 1) / (places - 1) if places > 1 and busy > 1 else 1.0
        return min(self.most, self.capacity / active) * slower


class Graph:
    """A graph of activities. Resources and activities are named by the numbers that the methods return."""

    def __init__(self) -> None:
        self.resources: list[Resource] = [Resource("nothing", np.inf)]
        self._work: list[float] = []
        self._places: list[tuple[int, int]] = []
        self._queue: list[int | None] = []
        self._urgency: list[float] = []
        self._follows: list[tuple[int, ...]] = []
        self.kinds: list[str] = []
        self._queues = 0

    def resource(self, resource: Resource) -> int:
        """Add a resource."""
        self.resources.append(resource)
        return len(self.resources) - 1

    def queue(self) -> int:
        """Add a queue, such as a thread or a connection: its activities run one at a time, the least urgency number first."""
        self._queues += 1
        return self._queues - 1

    def add(
        self,
        kind: str,
        work: float,
        on: Sequence[int],
        follows: Iterable[int] = (),
        *,
        queue: int | None = None,
        urgency: float = 0.0,
    ) -> int:
        """Add an activity of `work` on one or two resources, or on none if it takes no time. `kind`: a word for `path`."""
        self.kinds.append(kind)
        first, second = (*on, 0, 0)[:2]
        self._work.append(work)
        self._places.append((first, second))
        self._queue.append(queue)
        self._urgency.append(urgency)
        self._follows.append(tuple(follows))
        return len(self._work) - 1

    def run(self) -> ActivityTimes:
        """Return begin and end of every activity. Raises PsnodeError if activities wait for each other in a circle."""
        found = _Run(self._work, self._places, self._queue, self._urgency, self._follows, self.resources, self._queues)
        return found.schedule()


@dataclass(frozen=True)
class ActivityTimes:
    """Times of all activities in seconds. `work` and `places`: those of the graph.

    `cause`: for each activity the one whose end let it begin, -1 if it began at once.
    """

    begin: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    cause: npt.NDArray[np.int64]
    work: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]

    def load(self, resource: int, start: float, stop: float) -> float:
        """Return the work on `resource` between two times, each activity's spread evenly over its duration."""
        here = (self.places == resource).any(axis=1) & (self.work > 0)
        begin, end = self.begin[here], self.end[here]
        inside = np.clip(np.minimum(end, stop) - np.maximum(begin, start), 0, None)
        return float((self.work[here] * inside / np.maximum(end - begin, 1e-12)).sum())

    def path(self, last: int, start: float, kinds: Sequence[str]) -> dict[str, float]:
        """Return the seconds of the chain of causes from time `start` to the end of activity `last`, by kind of activity."""
        found: dict[str, float] = {}
        while last >= 0 and self.end[last] > start:
            inside = self.end[last] - max(self.begin[last], start)
            found[kinds[last]] = found.get(kinds[last], 0.0) + float(inside)
            last = int(self.cause[last])
        return found


class _Run:
    """One run over the graph, from event to event: the end of the activity that needs the least time at its present rate."""

    def __init__(
        self,
        work: Sequence[float],
        places: Sequence[tuple[int, int]],
        queue: Sequence[int | None],
        urgency: Sequence[float],
        follows: Sequence[tuple[int, ...]],
        resources: Sequence[Resource],
        queues: int,
    ) -> None:
        count = len(work)
        self._work, self._places = np.array(work, float), np.array(places, np.int64).reshape(count, 2)
        self._queue, self._urgency, self._resources = queue, urgency, resources
        self._missing = [len(each) for each in follows]
        self._next: list[list[int]] = [[] for _ in work]
        for index, each in enumerate(follows):
            for earlier in each:
                self._next[earlier].append(index)
        self._waiting: list[list[tuple[float, int]]] = [[] for _ in range(queues)]
        self._taken = [False] * queues
        self._begin, self._end, self._cause = np.full(count, np.nan), np.full(count, np.nan), np.full(count, -1)
        self._over = -1  # the activity that has just ended
        self._now = 0.0
        self._ready: list[int] = []  # begin at this moment
        self._unserved: dict[int, int] = {}  # queues that may have an activity to begin, and the activity whose end allows it
        self._active: list[int] = []
        self._left = np.zeros(0)

    def schedule(self) -> ActivityTimes:
        for index, missing in enumerate(self._missing):
            if not missing:
                self._release(index)
        while self._start() or self._active:
            self._advance()
        if np.isnan(self._end).any():
            raise PsnodeError("activities of the model wait for each other")
        return ActivityTimes(self._begin, self._end, self._cause, self._work, self._places)

    def _release(self, index: int) -> None:
        """Note that all activities before `index` have ended."""
        queue = self._queue[index]
        if queue is None:
            self._cause[index] = self._over
            self._ready.append(index)
        else:
            heapq.heappush(self._waiting[queue], (self._urgency[index], index))
            self._unserved.setdefault(queue, self._over)

    def _start(self) -> bool:
        """Begin all activities that are ready; those without work end at once. Return True if any with work has begun."""
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
        return bool(begun)

    def _serve(self, queue: int, cause: int) -> None:
        """Let the most urgent activity of a free queue begin, if one waits."""
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
        """Go to the next moment at which an activity ends."""
        places = self._places[self._active]
        counts = np.bincount(places.ravel(), minlength=len(self._resources))
        rates = np.full(len(counts), np.inf)
        for place in (np.flatnonzero(counts[1:]) + 1).tolist():
            rates[place] = self._resources[place].rate(int(counts[place]))
        speed = rates[places].min(axis=1)
        needed = self._left / speed
        step = needed.min()
        self._now += float(step)
        done = needed <= step * (1 + 1e-12)
        self._left = (self._left - speed * step)[~done]
        ended = [index for index, over in zip(self._active, done, strict=True) if over]
        self._active = [index for index, over in zip(self._active, done, strict=True) if not over]
        for index in ended:
            self._finish(index)
