"""Threads for a shard's arithmetic: the work of one group stays in order, and groups run in parallel.

If work waits in a queue, the work whose result the next forward pass needs first is done first. Groups are numbered in the
order in which back-propagation finishes them, so this is the work of the group with the highest number.
"""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterable

from psnode.config.cores import usable_cores
from psnode.errors import PsnodeError, in_one_line
from psnode.transport.base import Inbox

Work = Callable[[], object]
_Queue = queue.PriorityQueue[tuple[float, int, Work | None]]  # (-group, number of the submission, work)
_MOST = 4


def lane_count(groups: int) -> int:
    """Return the number of lanes: at most 4, at most one per group, and fewer than the number of cores.

    One core is left to the transport. On a single core there is one lane.
    """
    return most_lanes(usable_cores(), groups)


def most_lanes(cores: int, groups: int) -> int:
    """Return the result of `lane_count` for a host with `cores` cores."""
    return max(1, min(_MOST, cores - 1, groups))


class GroupExecutor:
    """Pool of `count` threads, called lanes, for the work of `groups`. A group's work is always done in the same lane.

    The result of each piece of work, or the error that it raises, is posted to `inbox`. A list is posted item by item, and
    None is not posted.
    """

    def __init__(self, inbox: Inbox, count: int, groups: Iterable[int]) -> None:
        self._inbox = inbox
        self._lanes = {group: place % count for place, group in enumerate(groups)}
        self._queues: list[_Queue] = [queue.PriorityQueue() for _ in range(count)]
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._run, args=(work,), name=f"lane-{index}", daemon=True)
            for index, work in enumerate(self._queues)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, group: int, work: Work) -> None:
        """Queue `work` in the lane of `group`, after the queued work of this group and of all groups with higher numbers."""
        self._queues[self._lanes[group]].put((-group, next(self._numbers), work))

    def close(self) -> None:
        """Finish all queued work and end the threads."""
        for waiting in self._queues:
            waiting.put((math.inf, next(self._numbers), None))
        for thread in self._threads:
            thread.join()

    def _run(self, waiting: _Queue) -> None:
        while (work := waiting.get()[2]) is not None:
            try:
                result = work()
            except SystemExit as error:  # e.g. raised by a task; this would end only this thread
                result = PsnodeError(in_one_line(error))
            except Exception as error:  # the owner of the inbox raises it
                result = error
            for event in result if isinstance(result, list) else [result]:
                if event is not None:
                    self._inbox.post(event)
