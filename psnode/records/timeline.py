"""Timeline of every rank's work, as a Chrome trace, which ui.perfetto.dev opens.

The format is described in "Trace Event Format", Google, 2016: complete events ("ph": "X"), with times in microseconds. Every
host uses its own wall clock.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import WireError
from psnode.records.metrics import write_atomically

TIMELINE = "timeline.json"
_LIMIT = 1_000_000  # events that a rank keeps; later ones are dropped


class Tracer:
    """Collector of the spans of one rank. While the collector is not enabled, a span costs only one comparison."""

    def __init__(self, rank: int, *, enabled: bool) -> None:
        self.rank = rank
        self.enabled = enabled
        self._events: list[tuple[str, str, float, float, dict[str, int]]] = []

    @contextmanager
    def span(self, name: str, **facts: int) -> Iterator[None]:
        """Record the duration of the block, its thread, and `facts`."""
        if not self.enabled or len(self._events) >= _LIMIT:
            yield
            return
        start = time.time()
        try:
            yield
        finally:
            self._events.append((name, threading.current_thread().name, start, time.time() - start, facts))

    def events(self) -> list[dict[str, Any]]:
        """Return the spans as trace events."""
        return [
            {"name": name, "ph": "X", "pid": self.rank, "tid": thread, "ts": start * 1e6, "dur": seconds * 1e6, "args": facts}
            for name, thread, start, seconds, facts in self._events
        ]

    def to_bytes(self) -> bytes:
        """Return the events as JSON, for the master."""
        return to_json(self.events()).encode()


def parse_events(content: bytes, rank: int) -> list[dict[str, Any]]:
    """Return the events that rank `rank` sent. Raises WireError if `content` is not a list of events of that rank."""
    try:
        events = json.loads(content)
        if isinstance(events, list) and all(event["pid"] == rank and isinstance(event["name"], str) for event in events):
            return events
    except (ValueError, TypeError, KeyError, RecursionError):
        pass
    raise WireError("trace is not a list of events", rank)


def write_timeline(directory: Path, events: Iterable[dict[str, Any]], names: dict[int, str]) -> None:
    """Write timeline.json with the events of all ranks: one process per rank, one track per thread."""
    events = list(events)
    tracks: dict[tuple[int, str], int] = {}
    for event in events:
        event["tid"] = tracks.setdefault((event["pid"], str(event["tid"])), len(tracks))
    heads: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": rank, "args": {"name": name}} for rank, name in names.items()
    ]
    heads += [
        {"name": "thread_name", "ph": "M", "pid": rank, "tid": number, "args": {"name": thread}}
        for (rank, thread), number in tracks.items()
    ]
    write_atomically(directory / TIMELINE, to_json({"traceEvents": heads + events}).encode())
