"""The critical path of each step, which is the work that delayed the end of the step, from the spans of a timeline.

A step is the time between the ends of two versions. A version ends with its last update, on the version's root: the master in a
star, and under other topologies any rank that updates weights. The path of a step is followed backward from its end. The path's
last parts are the root's spans since the root last paused. Before them come the computation of the worker whose gradient ended
this pause, and the worker's wait for the weights. The parts are consecutive, so they add up to the step. If the clocks of hosts
disagree, time is shifted between neighbouring parts.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from psnode.plans.roles import MASTER
from psnode.report.steps import finite

PAUSE = 100e-6  # seconds; shorter gaps between spans of the root do not count as waiting for a message
_CLOSING = ("finish", "update", "downlink", "norm", "constrain", "average")
_UPDATING = ("decode", "protect", *_CLOSING)  # work on a group's gradients and weights, also on a worker that updates weights
PARTS = {
    "wait": "weights in transit, and other waits of the worker",
    "other": "the worker between its spans",
    "load": "taking the batch",
    "apply": "loading the weights",
    "forward_backward": "forward and backward",
    "up": "coding the remaining gradients, and their way to the rank that updates",
    "decode": "decoding and adding",
    "update": "optimizer",
    "downlink": "coding and sending the weights",
    "checkpoint": "checkpoint",
    "between": "the rank that updates, between its spans",
}


class WorkSpan(NamedTuple):
    """A piece of work on a rank, from `start` to `stop` in seconds of the wall clock.

    `track`: the number of the thread. `facts`: the whole numbers that were recorded with the span, by name.
    """

    rank: int
    track: int
    name: str
    start: float
    stop: float
    facts: Mapping[str, Any]


class PathPart(NamedTuple):
    """A part of a step's critical path, on one rank. `name`: a key of PARTS, or the name of the span it comes from."""

    rank: int
    name: str
    start: float
    stop: float


@dataclass(frozen=True)
class CriticalPath:
    """The critical path of step `step`, from time `start` to time `stop`.

    `root`: the rank with the last update. `worker`: the worker whose gradient ended the root's last wait; None if the root never
    waited.
    """

    step: int
    start: float
    stop: float
    worker: int | None
    parts: tuple[PathPart, ...]
    root: int = MASTER


def spans_of(events: Iterable[Mapping[str, Any]]) -> list[WorkSpan]:
    """Return the complete events of a Chrome trace (those with a duration) as spans, sorted by start. Skip other events."""
    found = []
    for event in events:
        start, length, facts = finite(event.get("ts")), finite(event.get("dur")), event.get("args")
        rank, name, track = event.get("pid"), event.get("name"), event.get("tid")
        if event.get("ph") != "X" or start is None or length is None or length < 0 or not isinstance(name, str):
            continue
        if type(rank) is int and type(track) is int and 0 <= rank < 1 << 31 and isinstance(facts, dict):
            found.append(WorkSpan(rank, track, name, start / 1e6, (start + length) / 1e6, facts))
    return sorted(found, key=lambda span: span.start)


def computing(spans: Iterable[WorkSpan]) -> frozenset[int]:
    """Return the ranks that compute gradients."""
    return frozenset(span.rank for span in spans if span.name == "forward_backward")


def name_of(rank: int, workers: Collection[int]) -> str:
    """Return the name of a rank by its role. `workers`: the ranks that compute gradients."""
    return "master" if rank == MASTER else f"worker {rank}" if rank in workers else f"server {rank}"


def paths(spans: Sequence[WorkSpan]) -> list[CriticalPath]:
    """Return the critical paths of all steps whose beginning and end are both known from the spans."""
    last = dict[int, tuple[float, int]]()  # by version, the end of its last update, and the rank of this update
    for span in spans:
        version = span.facts.get("version")
        if span.name in _CLOSING and type(version) is int:
            last[version] = max((span.stop, span.rank), last.get(version, (span.stop, span.rank)))
    windows: dict[int, dict[int, tuple[float, float]]] = defaultdict(dict)  # by root and step
    for step, (stop, root) in sorted(last.items()):
        if step - 1 in last and stop > last[step - 1][0]:
            windows[root][step] = last[step - 1][0], stop
    work, found = _by_step(spans), list[CriticalPath]()
    for root, its in windows.items():
        updating = [span for span in spans if span.rank == root and (root == MASTER or span.name in _UPDATING)]
        shares = _shared_out(updating, list(its.values()))
        found += [_path(step, *its[step], root, inside, work) for step, inside in zip(its, shares, strict=True)]
    return sorted(found, key=lambda path: path.step)


def _by_step(spans: Sequence[WorkSpan]) -> dict[tuple[int, int], list[WorkSpan]]:
    """Return the spans of workers by worker and step.

    The spans of a step are those that end after the worker's pass of the previous step, and no later than its pass of this
    step, without the spans in which the worker updates weights.
    """
    passes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for span in spans:
        step = span.facts.get("step")
        if span.rank != MASTER and span.name == "forward_backward" and type(step) is int:
            passes[span.rank].append((span.stop, step))
    found: dict[tuple[int, int], list[WorkSpan]] = defaultdict(list)
    for span in spans:
        if span.rank in passes and span.name not in _UPDATING:
            index = bisect.bisect_left(passes[span.rank], (span.stop,))
            if index < len(passes[span.rank]):
                found[span.rank, passes[span.rank][index][1]].append(span)
    return found


def _shared_out(spans: Sequence[WorkSpan], windows: Sequence[tuple[float, float]]) -> list[list[WorkSpan]]:
    """Return, for each window of time, the spans that lie in it wholly or partly. The windows are sorted and do not overlap."""
    found: list[list[WorkSpan]] = [[] for _ in windows]
    for span in spans:
        index = bisect.bisect_right(windows, span.start, key=lambda window: window[1])
        while index < len(windows) and windows[index][0] < span.stop:
            found[index].append(span)
            index += 1
    return found


def _path(
    step: int, start: float, stop: float, root: int, inside: list[WorkSpan], work: Mapping[tuple[int, int], list[WorkSpan]]
) -> CriticalPath:
    """Return the critical path of a step, which is followed backward from its end `stop`.

    It has the spans of `root`, of which `inside` are given, after its last pause and, before them, the spans of the worker whose
    gradient ended the pause.
    """
    begun, first = stop, None
    for span in sorted(inside, key=lambda span: span.stop, reverse=True):
        if span.stop < begun - PAUSE and first is not None and "sender" in first.facts:
            break
        if span.start < begun:
            begun, first = span.start, span
    begun = max(begun, start)
    sender = first.facts.get("sender") if first is not None and begun > start else None
    if type(sender) is not int:
        return CriticalPath(step, start, stop, None, tuple(_cover(root, inside, start, stop, "between")), root)
    before = work.get((sender, step), [])
    computed = min(max((span.stop for span in before if span.name == "forward_backward"), default=start), begun)
    computed = max(computed, start)
    parts = [
        *_cover(sender, before, start, computed, "other"),
        PathPart(sender, "up", computed, begun),
        *_cover(root, inside, begun, stop, "between"),
    ]
    return CriticalPath(step, start, stop, sender, tuple(part for part in parts if part.stop > part.start), root)


def _cover(rank: int, spans: Sequence[WorkSpan], start: float, stop: float, gap: str) -> list[PathPart]:
    """Return consecutive parts that cover the time from `start` to `stop`.

    A part has the name of the shortest span that covers it, or the name `gap` if there is no such span. `spans` are sorted by
    start.
    """
    edges = sorted({start, stop, *(edge for span in spans for edge in (span.start, span.stop) if start < edge < stop)})
    parts, over, index = list[PathPart](), list[WorkSpan](), 0
    for a, b in pairwise(edges):
        while index < len(spans) and spans[index].start <= a:
            over.append(spans[index])
            index += 1
        over = [span for span in over if span.stop >= b]
        shortest = min(over, key=lambda span: span.stop - span.start, default=None)
        name = gap if shortest is None else _NAMES.get(shortest.name, shortest.name)
        if parts and parts[-1].name == name:
            parts[-1] = parts[-1]._replace(stop=b)
        else:
            parts.append(PathPart(rank, name, a, b))
    return parts


_NAMES = {"norm": "update", "protect": "update", "finish": "decode", "constrain": "update", "average": "update", "drain": "wait"}


def means(found: Sequence[CriticalPath]) -> dict[str, float]:
    """Return the mean seconds per step of each part of the critical path, by name.

    First come the names in PARTS, in their order, and then all other names.
    """
    sums: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for path in found:
        for part in path.parts:
            sums[part.name] = sums.get(part.name, 0.0) + part.stop - part.start
    return {name: seconds / len(found) for name, seconds in sums.items() if seconds}


def bounds(found: Sequence[CriticalPath]) -> dict[int, int]:
    """Return, for each rank, the number of steps that it delayed.

    A step is delayed by the worker whose gradient ended the root's last wait, or by the root if it never waited.
    """
    counts: dict[int, int] = defaultdict(int)
    for path in found:
        counts[path.root if path.worker is None else path.worker] += 1
    return dict(sorted(counts.items()))


def typical(found: Sequence[CriticalPath]) -> CriticalPath:
    """Return the path of the step with the median duration; of two middle steps, the path of the longer one."""
    ordered = sorted(found, key=lambda path: path.stop - path.start)
    return ordered[len(ordered) // 2]
