"""Seconds added up by name."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums of seconds by name. Any thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        """Return a context that adds the time spent in it to the sum `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self._seconds[name] += time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Return the sums of seconds since the last call, by name."""
        with self._lock:
            taken, self._seconds = self._seconds, defaultdict(float)
        return taken
