"""The event loop of psnode.jobs.planning.fluid.simulation.

It is compiled, so that an event takes microseconds; a prediction has thousands of them. Activities, queues and resources are
records. The comments beside their types explain the fields.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from psnode.codecs.kernels.jit import kernel

Records = npt.NDArray[np.void]
Numbers = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]

NONE = -1
ACTIVITY = np.dtype(
    [
        ("work", "f8"),
        ("weight", "f8"),
        ("urgency", "f8"),
        ("begin", "f8"),  # NaN before it has begun
        ("end", "f8"),
        ("one", "i8"),  # its resources
        ("other", "i8"),
        ("queue", "i8"),  # its queue or NONE
        ("missing", "i8"),  # number of activities before it that have not ended
        ("first", "i8"),  # later[first:last]: the activities that follow it
        ("last", "i8"),
        ("cause", "i8"),  # the activity whose end allowed it to begin, or NONE
        ("below", "i8"),  # the activity below it on the stack of those that begin at this moment
    ]
)
QUEUE = np.dtype(
    [
        ("start", "i8"),  # waiting[start : start + length]: a heap of the activities that wait, the most urgent first
        ("length", "i8"),
        ("taken", "i8"),  # 1 while an activity of the queue runs
        ("marked", "i8"),  # 1 on the stack of queues that may have an activity to begin
        ("allowed", "i8"),  # the activity whose end allows this
        ("below", "i8"),  # the queue below it on this stack
    ]
)
RESOURCE = np.dtype(
    [
        ("capacity", "f8"),
        ("most", "f8"),
        ("crowded", "f8"),
        ("burst", "f8"),
        ("turns", "f8"),
        ("room", "f8"),  # the number of activities that use the whole capacity
        ("saved", "f8"),  # unused capacity that a burst may use
        ("count", "f8"),  # number of active activities
        ("sum", "f8"),  # of their weights, or of the work that they do
    ]
)
_READY, _UNSERVED, _OVER = range(3)  # entries of `tops`: the tops of the two stacks, and the activity that has just ended


@kernel
def _before(activities: Records, one: int, other: int) -> bool:
    a, b = activities[one].urgency, activities[other].urgency
    return bool(a < b or (a == b and one < other))


@kernel
def _push(activities: Records, queues: Records, waiting: Numbers, index: int) -> None:
    """Put activity `index`, which waits for its turn, on the heap of its queue."""
    queue = queues[activities[index].queue]
    place = queue.length
    queue.length += 1
    while place:
        above = (place - 1) // 2
        if not _before(activities, index, waiting[queue.start + above]):
            break
        waiting[queue.start + place] = waiting[queue.start + above]
        place = above
    waiting[queue.start + place] = index


@kernel
def _pop(activities: Records, queues: Records, waiting: Numbers, number: int) -> int:
    """Remove the most urgent activity from the heap of queue `number`, and return it."""
    queue = queues[number]
    queue.length -= 1
    start, size, place = queue.start, queue.length, 0
    found, index = waiting[start], waiting[start + size]
    while 2 * place + 1 < size:
        below = 2 * place + 1
        if below + 1 < size and _before(activities, waiting[start + below + 1], waiting[start + below]):
            below += 1
        if not _before(activities, waiting[start + below], index):
            break
        waiting[start + place] = waiting[start + below]
        place = below
    waiting[start + place] = index
    return int(found)


@kernel
def _ready(activities: Records, tops: Numbers, index: int, cause: int) -> None:
    """Put activity `index` on the stack of activities that begin at this moment. `cause`: the activity whose end allows this."""
    activities[index].cause = cause
    activities[index].below = tops[_READY]
    tops[_READY] = index


@kernel
def _mark(queues: Records, tops: Numbers, number: int, cause: int) -> None:
    """Put queue `number` on the stack of queues that may have an activity to begin.

    The queue must not be on the stack already. `cause`: the activity whose end may allow another one to begin.
    """
    queue = queues[number]
    queue.marked = 1
    queue.allowed = cause
    queue.below = tops[_UNSERVED]
    tops[_UNSERVED] = number


@kernel
def _release(activities: Records, queues: Records, waiting: Numbers, tops: Numbers, index: int) -> None:
    """Let activity `index` begin, or wait in its queue. All activities that it follows have ended."""
    number = activities[index].queue
    if number == NONE:
        _ready(activities, tops, index, tops[_OVER])
        return
    _push(activities, queues, waiting, index)
    if not queues[number].marked:
        _mark(queues, tops, number, tops[_OVER])


@kernel
def _finish(
    activities: Records, queues: Records, later: Numbers, waiting: Numbers, tops: Numbers, index: int, now: float
) -> None:
    """End activity `index`, and release the activities for which it was the last one to wait for."""
    activities[index].end = now
    tops[_OVER] = index
    number = activities[index].queue
    if number != NONE:
        queues[number].taken = 0
        if queues[number].marked:
            queues[number].allowed = index
        else:
            _mark(queues, tops, number, index)
    for place in range(activities[index].first, activities[index].last):
        activities[later[place]].missing -= 1
        if not activities[later[place]].missing:
            _release(activities, queues, waiting, tops, later[place])


@kernel
def _begin(
    activities: Records, queues: Records, later: Numbers, waiting: Numbers, tops: Numbers, now: float, begun: Numbers
) -> int:
    """Begin all activities that are ready, and immediately end those among them that have no work.

    The others are written to `begun`. Returns their number.
    """
    count = 0
    while tops[_READY] != NONE or tops[_UNSERVED] != NONE:
        while tops[_READY] != NONE:
            index = tops[_READY]
            tops[_READY] = activities[index].below
            activities[index].begin = now
            if activities[index].work > 0:
                begun[count] = index
                count += 1
            else:
                _finish(activities, queues, later, waiting, tops, index, now)
        if tops[_UNSERVED] != NONE:
            number = tops[_UNSERVED]
            queue = queues[number]
            tops[_UNSERVED] = queue.below
            queue.marked = 0
            if not queue.taken and queue.length:
                queue.taken = 1
                _ready(activities, tops, _pop(activities, queues, waiting, number), queue.allowed)
    return count


@kernel
def _spend(activities: Records, resources: Records, active: Numbers, left: Reals) -> None:
    """Do a part of the work of active activities immediately, as far as their resources have saved capacity for bursts.

    The first activity takes as much of it as both of its resources allow, then the second one, and so on.
    """
    resources[0].saved = np.inf  # the second place of activities that use only one resource
    for i in range(active.size):
        one, other = activities[active[i]].one, activities[active[i]].other
        done = min(left[i] * (1 - 1e-9), min(resources[one].saved, resources[other].saved))
        left[i] -= done
        resources[one].saved -= done
        resources[other].saved -= done


@kernel
def _clear(activities: Records, resources: Records, active: Numbers) -> None:
    """Set `count` and `sum` of each resource to the number of its active activities and the sum of their weights.

    An activity on a single resource also counts on resource number 0.
    """
    for place in range(resources.size):
        resources[place].count = 0.0
        resources[place].sum = 0.0
    for index in active:
        activity = activities[index]
        for place in (activity.one, activity.other):
            resources[place].count += 1.0
            resources[place].sum += activity.weight


@kernel
def _speed(resources: Records, place: int, weight: float) -> float:
    """Return the work per second that resource `place` allows to an activity of weight `weight`."""
    found = resources[place]
    busy = min(found.count, found.room)
    slower = 1.0 - (1.0 - found.crowded) * max(busy - 1, 0.0) / max(found.room - 1, 1e-9)
    if found.count > found.room:
        slower *= found.turns
    return float(min(found.most, found.capacity * (weight / found.sum)) * slower)


@kernel
def _save(activities: Records, resources: Records, active: Numbers, speed: Reals, step: float) -> None:
    """Save for later bursts the capacity of each resource that was not used in the last `step` seconds."""
    for place in range(resources.size):
        resources[place].sum = 0.0
    for i in range(active.size):
        resources[activities[active[i]].one].sum += speed[i]
        resources[activities[active[i]].other].sum += speed[i]
    for place in range(resources.size):
        found = resources[place]
        if found.burst:
            found.saved = min(found.burst, found.saved + max(found.capacity - found.sum, 0.0) * step)


@kernel
def run_events(activities: Records, queues: Records, resources: Records, later: Numbers) -> None:
    """Run from event to event until no activity is active.

    An event is the end of the activity that finishes first at its present rate. The results are written to the fields
    `begin`, `end` and `cause` of `activities`. `begin` and `end` remain NaN for activities that can never begin. The
    records of queues and resources are changed too.
    """
    size, now, count = activities.size, 0.0, 0
    active, ended, left, speed = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size), np.empty(size)
    waiting, tops = np.empty(size, np.int64), np.full(3, NONE)
    bursts = False
    for place in range(resources.size):
        bursts |= resources[place].burst > 0
    for index in range(size):
        if not activities[index].missing:
            _release(activities, queues, waiting, tops, index)
    while True:
        begun = _begin(activities, queues, later, waiting, tops, now, active[count:])
        active[count : count + begun].sort()  # the first of messages that begin together gets a burst first
        for i in range(count, count + begun):
            left[i] = activities[active[i]].work
        count += begun
        if not count:
            return
        if begun and bursts:
            _spend(activities, resources, active[:count], left[:count])
        _clear(activities, resources, active[:count])
        step = np.inf
        for i in range(count):
            activity = activities[active[i]]
            weight = activity.weight
            speed[i] = min(_speed(resources, activity.one, weight), _speed(resources, activity.other, weight))
            step = min(step, left[i] / speed[i])
        if not step < np.inf:  # an amount of work is no finite number
            return
        now += step
        if bursts:
            _save(activities, resources, active[:count], speed[:count], step)
        kept = over = 0
        for i in range(count):
            if left[i] / speed[i] <= step * (1 + 1e-12):
                ended[over] = active[i]
                over += 1
            else:
                active[kept], left[kept] = active[i], left[i] - speed[i] * step
                kept += 1
        count = kept
        for i in range(over):
            _finish(activities, queues, later, waiting, tops, ended[i], now)
