"""Spans of a simulated job's work, in the form in which the ranks of a real job record them for timeline.json."""

from __future__ import annotations

from typing import Any


class SimulatedSpans:
    """A collector of spans that get the names and facts of psnode.records.timeline.Tracer. It stores them only if `enabled`.

    `events`: the spans as trace events, with virtual times.
    """

    def __init__(self, *, enabled: bool = False) -> None:
        self._enabled = enabled
        self.events: list[dict[str, Any]] = []

    def add(self, rank: int, thread: str, name: str, start: float, stop: float, **facts: int) -> None:
        """Record the work of a thread of `rank` from time `start` to time `stop`, in seconds."""
        if self._enabled:
            times = {"ts": start * 1e6, "dur": (stop - start) * 1e6}
            self.events.append({"name": name, "ph": "X", "pid": rank, "tid": thread, **times, "args": facts})
