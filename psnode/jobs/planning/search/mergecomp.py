"""MergeComp's schedule: a given number of groups, and the cuts that minimise the paper's own model of a step.

Z. Wang et al., "MergeComp: A compression scheduler for scalable communication-efficient distributed training", arXiv:2103.15195,
2021. A step with groups of x_1, ..., x_y coordinates takes

    F = A + sum of h(x_i) + sum of g(x_i) - the time in which communication is hidden,

where A is the time of the passes, h(x) is the time to compress x coordinates, and g(x) is the time to communicate them.
Both are linear functions. Compression delays the backward pass. Communication runs in parallel to both, one group after
another. In this module, h is the time of all work on a group, on a worker and on the master. For P workers, g is the time
of P frames to the master and P frames from it. If R roots work at the same time (StageLoads), the work and the frames of a
group's root count with the factor 1 / R.

If the first of two groups grows, it is sent later, and the second group takes less time. So F is the maximum of a rising
and a falling function of the cut between them, and the best cut is found by bisection. With y groups, the last cut is
found by bisection for every choice of the other cuts. For N tensors this takes a number of steps that grows as N^(y - 2)
log N. The paper tries y = 2, 3, ... until another group gains little.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations

import numpy as np

from psnode.errors import ConfigurationError
from psnode.jobs.planning.search.grouping import Grouping
from psnode.jobs.planning.search.step_clocks import StepClocks, joined_small

GAIN = 0.05  # another group must lower F by at least this fraction
_MOST = 3  # maximum number of groups that are tried


def merged_step(clocks: StepClocks, stops: Sequence[int], candidate: int = 0) -> float:
    """Return F, the paper's step time, in seconds, if all groups are coded by one candidate.

    `stops`: for each group, the number of the tensor before which it ends.
    """
    computed = sent = ready = 0.0
    start, loads = 0, clocks.loads
    for stop in stops:
        group = clocks.times(np.array([start]), stop, candidate)
        coding = group.encode + (loads.gradients * group.decode + group.update) / loads.roots + group.apply
        computed += float(group.ready[0]) - ready + float(coding[0])
        frames = loads.inward * group.frame_in + loads.outward * group.frame_out
        sent = max(sent, computed) + float(frames[0]) / loads.roots
        start, ready = stop, float(group.ready[0])
    return clocks.profile.forward + max(sent, computed + clocks.profile.backward - ready)


def merged(clocks: StepClocks, groups: int, candidate: int = 0, *, exhaustive: bool = False, least_node: int = 0) -> Grouping:
    """Return MergeComp's schedule of `groups` groups, all coded by one candidate.

    The `seconds` of the result come from the model of `clocks`; they are not F. `exhaustive`: True to compare all cuts.
    `least_node`: groups end only after tensors of at least this many coordinates. Raises ConfigurationError if there are
    fewer such tensors than groups.
    """
    ends = joined_small(clocks.tensors, least_node)
    if not 1 <= groups <= len(ends):
        raise ConfigurationError(f"{len(ends)} tensors cannot form {groups} groups")
    if groups == 1:
        return clocks.grouping(ends[-1:], [candidate])

    def price(cuts: Sequence[int]) -> float:
        return merged_step(clocks, [*cuts, ends[-1]], candidate)

    if exhaustive:
        best = min((list(cuts) for cuts in combinations(ends[:-1], groups - 1)), key=price)
    else:
        found = []
        for fixed in combinations(range(len(ends) - 2), groups - 2):
            free = ends[fixed[-1] + 1 if fixed else 0 : -1]
            before = [ends[place] for place in fixed]
            last = lowest(len(free), lambda place, before=before, free=free: price([*before, free[place]]))  # type: ignore[misc]
            found.append([*before, free[last]])
        best = min(found, key=price)
    return clocks.grouping([*best, ends[-1]], [candidate] * groups)


def merged_while_it_gains(clocks: StepClocks, candidate: int = 0, *, most: int = _MOST, least_node: int = 0) -> Grouping:
    """Return MergeComp's schedule with at most `most` groups, as many as are worthwhile.

    The number of groups is raised by one as long as this lowers F by at least the fraction GAIN.
    """
    found = merged(clocks, 1, candidate, least_node=least_node)
    for groups in range(2, min(most, len(joined_small(clocks.tensors, least_node))) + 1):
        more = merged(clocks, groups, candidate, least_node=least_node)
        if _step_of(clocks, more, candidate) > (1 - GAIN) * _step_of(clocks, found, candidate):
            break
        found = more
    return found


def _step_of(clocks: StepClocks, grouping: Grouping, candidate: int) -> float:
    return merged_step(clocks, np.cumsum([len(group.names) for group in grouping.groups]).tolist(), candidate)


def lowest(count: int, price: Callable[[int], float]) -> int:
    """Return the number in range(count) with the lowest price, by bisection. Prices must first fall and then rise."""
    low, high = 0, count - 1
    while low < high:
        middle = (low + high) // 2
        if price(middle) <= price(middle + 1):
            high = middle
        else:
            low = middle + 1
    return low
