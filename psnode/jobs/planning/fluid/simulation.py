"""Duration of a graph of activities that share cores and links.

An activity is a piece of work on at most two resources, for example a second of work on a core, or the bytes of a message
on the two links that it crosses. It begins when all activities that it follows have ended, and its queue is free and has
no more urgent activity. At every moment, the activities on a resource share it in proportion to their weights, but no
activity gets more than the resource's maximum for one activity. This is the fluid model of H. Casanova et al., "Versatile,
scalable, and accurate simulation of distributed applications and platforms", J. Parallel Distrib. Comput. 74, 2014.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.errors import PsnodeError
from psnode.jobs.planning.fluid.fluid_events import ACTIVITY, NONE, QUEUE, RESOURCE, run_events


@dataclass(frozen=True)
class Resource:
    """A resource, such as a link or the cores of a host, that activities share.

    `capacity`: the work per second of all activities together. `most`: the maximum work per second of one activity.
    `crowded`: the rate of one activity, relative to `most`, while the whole capacity is in use. Between one activity and the
    whole capacity the rate falls linearly. Cores that share caches or memory have a value below 1. `turns`: the factor by which
    all rates fall while there are more activities than use the whole capacity. Cores that switch between threads have a value
    below 1, because every thread finds caches that others have overwritten.

    `burst`: work that is done immediately after a pause, as in a token bucket: unused capacity is saved up to this amount.
    """

    capacity: float
    most: float = np.inf
    crowded: float = 1.0
    burst: float = 0.0
    turns: float = 1.0

    @property
    def room(self) -> float:
        """The number of activities that use the whole capacity."""
        return self.capacity / self.most if self.most < np.inf else 1.0


class Graph:
    """A graph of activities, resources and queues. Its methods return their numbers, by which other methods refer to them."""

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
        """Add a resource, and return its number."""
        self.resources.append(resource)
        return len(self.resources) - 1

    def queue(self) -> int:
        """Add a queue, such as a thread or a connection, and return its number.

        The activities of a queue run one at a time. Of those that wait, the one with the lowest urgency number begins first.
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
        """Add an activity of `work` on one or two resources, or on none if it takes no time, and return its number.

        `kind`: the name under which `ActivityTimes.path` counts the activity. `follows`: the activities that must end before
        it begins.
        """
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
        """Return the times at which all activities begin and end. Raises PsnodeError if activities wait for each other."""
        count = len(self.work)
        sizes = [len(each) for each in self.follows]
        earlier = np.fromiter(itertools.chain.from_iterable(self.follows), np.int64, sum(sizes))
        activities = np.zeros(count, ACTIVITY)
        activities["work"], activities["weight"], activities["urgency"] = self.work, self.weights, self.urgency
        activities["begin"] = activities["end"] = np.nan
        activities["one"], activities["other"] = places = np.array(self.places, np.int64).reshape(count, 2).T
        activities["queue"] = [NONE if each is None else each for each in self.served_by]
        activities["missing"], activities["cause"] = sizes, NONE
        activities["last"] = np.cumsum(np.bincount(earlier, minlength=count))
        activities["first"][1:] = activities["last"][:-1]
        later = np.repeat(np.arange(count), sizes)[np.argsort(earlier, kind="stable")]
        run_events(activities, self._queues(), self._resources(), later)
        if np.isnan(activities["end"]).any():
            raise PsnodeError("activities of the model wait for each other")
        begin, end, cause, work = (activities[field].copy() for field in ("begin", "end", "cause", "work"))
        return ActivityTimes(begin, end, cause, work, places.T, len(self.resources))

    def _queues(self) -> npt.NDArray[np.void]:
        """Return the records of the queues for fluid_events, with room for all of their activities."""
        found = np.zeros(self.queues, QUEUE)
        sizes = np.bincount([each for each in self.served_by if each is not None], minlength=self.queues)
        found["start"] = np.cumsum(sizes) - sizes
        return found

    def _resources(self) -> npt.NDArray[np.void]:
        found = np.zeros(len(self.resources), RESOURCE)
        for field in ("capacity", "most", "crowded", "burst", "turns", "room"):
            found[field] = [getattr(each, field) for each in self.resources]
        found["saved"] = found["burst"]
        return found


@dataclass(frozen=True)
class ActivityTimes:
    """The times of all activities of a graph, in seconds. `work` and `places`: the work and the resources of each activity.

    `resources`: the number of resources of the graph. `cause`: for each activity, the activity whose end allowed it to begin,
    or -1 if it began at the start.
    """

    begin: npt.NDArray[np.float64]
    end: npt.NDArray[np.float64]
    cause: npt.NDArray[np.int64]
    work: npt.NDArray[np.float64]
    places: npt.NDArray[np.int64]
    resources: int

    def in_use(self, room: npt.NDArray[np.float64], start: float, stop: float) -> npt.NDArray[np.float64]:
        """Return, for each resource, the mean share of it that is in use between the times `start` and `stop`.

        `room`: for each resource, the number of activities that use its whole capacity. Entry 0 stands for no resource.
        """
        begin, end = (np.tile(np.clip(times, start, stop), 2) for times in (self.begin, self.end))
        places = np.tile(self.places.T.ravel(), 2)
        times, change = np.concatenate([begin, end]), np.repeat([1, -1], begin.size)
        order = np.lexsort((times, places))
        places, times, active = places[order], times[order], np.cumsum(change[order])
        lasting = np.where(places[1:] == places[:-1], np.diff(times), 0.0)
        share = np.minimum(active[:-1] / room[places[:-1]], 1.0)
        return np.bincount(places[:-1], share * lasting, self.resources) / (stop - start)

    def path(self, last: int, start: float, kinds: Sequence[str]) -> dict[str, float]:
        """Return the seconds of each kind of activity on the chain of causes that leads to the end of activity `last`.

        Only the time from `start` on counts.
        """
        found: dict[str, float] = {}
        while last >= 0 and self.end[last] > start:
            inside = self.end[last] - max(self.begin[last], start)
            found[kinds[last]] = found.get(kinds[last], 0.0) + float(inside)
            last = int(self.cause[last])
        return found
