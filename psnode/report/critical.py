"""The critical path of each step, which is the work that delayed the end of the step, from the spans of a timeline.

A step is the time between the ends of two versions on the master. Its path is followed backward from its end. The path's last
parts are the master's spans since the master last paused. Before them come the computation of the worker whose gradient ended
this pause, and the worker's wait for the weights. The parts are consecutive, so they add up to the step. If the clocks of
hosts disagree, time is shifted between neighbouring parts.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from psnode.plans.roles import MASTER
from psnode.report.steps import finite

PAUSE = 100e-6  # seconds; shorter gaps between spans of the master do not count as waiting for a message
_CLOSING = ("finish", "update", "downlink", "norm", "constrain", "average")
PARTS = {
    "wait": "weights in transit, and other waits of the worker",
    "other": "the worker between its spans",
    "load": "taking the batch",
    "apply": "loading the weights",
    "forward_backward": "forward and backward",
    "up": "coding the remaining gradients, and their way to the master",
    "decode": "decoding and adding",
    "update": "optimizer",
    "downlink": "coding and sending the weights",
    "checkpoint": "checkpoint",
    "between": "the master between its spans",
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

    `worker`: the worker whose gradient ended the master's last wait; None if the master never waited.
    """

    step: int
    start: float
    stop: float
    worker: int | None
    parts: tuple[PathPart, ...]


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


def paths(spans: Sequence[WorkSpan]) -> list[CriticalPath]:
    """Return the critical paths of all steps whose beginning and end are both known from the spans."""
    ends = dict[int, float]()
    for span in spans:
        version = span.facts.get("version")
        if span.rank == MASTER and span.name in _CLOSING and type(version) is int:
            ends[version] = max(span.stop, ends.get(version, span.stop))
    steps = [step for step in sorted(ends) if step - 1 in ends and ends[step] > ends[step - 1]]
    windows = [(ends[step - 1], ends[step]) for step in steps]
    master = _shared_out([span for span in spans if span.rank == MASTER], windows)
    work = _by_step(spans)
    return [_path(step, *window, inside, work) for step, window, inside in zip(steps, windows, master, strict=True)]


def _by_step(spans: Sequence[WorkSpan]) -> dict[tuple[int, int], list[WorkSpan]]:
    """Return the spans of workers by worker and step.

    The spans of a step are those that end after the worker's pass of the previous step, and no later than its pass of this
    step.
    """
    passes: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for span in spans:
        step = span.facts.get("step")
        if span.rank != MASTER and span.name == "forward_backward" and type(step) is int:
            passes[span.rank].append((span.stop, step))
    found: dict[tuple[int, int], list[WorkSpan]] = defaultdict(list)
    for span in spans:
        if span.rank in passes:
            index = bisect.bisect_left(passes[span.rank], (span.stop,))
            if index < len(passes[span.rank]):
                found[span.rank, passes[span.rank][index][1]].append(span)
    return found


def _shared_out(spans: Sequence[WorkSpan], windows: Sequence[tuple[float, float]]) -> list[list[WorkSpan]]:
    """Return, for each window of time, the spans that lie in it wholly or partly. The windows are consecutive."""
    found: list[list[WorkSpan]] = [[] for _ in windows]
    for span in spans:
        index = bisect.bisect_right(windows, span.start, key=lambda window: window[1])
        while index < len(windows) and windows[index][0] < span.stop:
            found[index].append(span)
            index += 1
    return found


def _path(
    step: int, start: float, stop: float, master: list[WorkSpan], work: Mapping[tuple[int, int], list[WorkSpan]]
) -> CriticalPath:
    """Return the critical path of a step, which is followed backward from its end `stop`.

    It has the master's spans after its last pause and, before them, the spans of the worker whose gradient ended the pause.
    """
    begun, first = stop, None
    for span in sorted(master, key=lambda span: span.stop, reverse=True):
        if span.stop < begun - PAUSE and first is not None and "sender" in first.facts:
            break
        if span.start < begun:
            begun, first = span.start, span
    begun = max(begun, start)
    sender = first.facts.get("sender") if first is not None and begun > start else None
    if type(sender) is not int:
        return CriticalPath(step, start, stop, None, tuple(_cover(MASTER, master, start, stop, "between")))
    before = work.get((sender, step), [])
    computed = min(max((span.stop for span in before if span.name == "forward_backward"), default=start), begun)
    computed = max(computed, start)
    parts = [
        *_cover(sender, before, start, computed, "other"),
        PathPart(sender, "up", computed, begun),
        *_cover(MASTER, master, begun, stop, "between"),
    ]
    return CriticalPath(step, start, stop, sender, tuple(part for part in parts if part.stop > part.start))


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


_NAMES = {"norm": "update", "finish": "decode", "constrain": "update", "average": "update", "drain": "wait"}


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

    A step is delayed by the worker whose gradient ended the master's last wait, or by the master if it never waited.
    """
    counts: dict[int, int] = defaultdict(int)
    for path in found:
        counts[MASTER if path.worker is None else path.worker] += 1
    return dict(sorted(counts.items()))


def typical(found: Sequence[CriticalPath]) -> CriticalPath:
    """Return the path of the step with the median duration; of two middle steps, the path of the longer one."""
    ordered = sorted(found, key=lambda path: path.stop - path.start)
    return ordered[len(ordered) // 2]
