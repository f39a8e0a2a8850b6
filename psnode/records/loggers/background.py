"""A logger on its own thread, so that a run waits for it only at the run's end, and never sees its errors."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from psnode.errors import in_one_line
from psnode.records.loggers.base import Logger

_LOG = logging.getLogger(__name__)

_WAITING = 10_000  # maximum number of queued calls, enough for some minutes of fast steps


class Background:
    """A thread that creates a logger with `make` and calls it.

    A call is dropped if `waiting` other calls are queued. The first drop is logged.
    """

    def __init__(self, name: str, make: Callable[[], Logger], waiting: int = _WAITING) -> None:
        self._name = name
        self._calls: queue.Queue[Callable[[Logger], None] | None] = queue.Queue(waiting)
        self._dropped = 0
        self._failed = False
        self._thread = threading.Thread(target=self._serve, args=(make,), name=f"log to {name}", daemon=True)
        self._thread.start()

    def put(self, call: Callable[[Logger], None]) -> None:
        """Queue `call`. The thread calls it with the logger after all earlier calls are done."""
        if self._failed:
            return
        try:
            self._calls.put_nowait(call)
        except queue.Full:
            if not self._dropped:
                _LOG.warning("%s is slower than the steps: some are not logged by it", self._name)
            self._dropped += 1

    def close(self, end: float) -> None:
        """Wait until all queued calls are done, but not longer than until time `end` on the clock of time.monotonic."""
        try:
            self._calls.put(None, timeout=max(0.0, end - time.monotonic()))
        except queue.Full:
            pass
        else:
            self._thread.join(max(0.0, end - time.monotonic()))
        if self._thread.is_alive():
            _LOG.warning("%s is not done: its last records are not waited for", self._name)
        if self._dropped:
            _LOG.warning("%d calls of %s were left out, since it was slow", self._dropped, self._name)

    def _serve(self, make: Callable[[], Logger]) -> None:
        try:
            logger = make()
            while (call := self._calls.get()) is not None:
                call(logger)
        except (Exception, SystemExit) as error:
            self._failed = True
            _LOG.warning("nothing more is logged to %s: %s", self._name, in_one_line(error))
            self._drain()

    def _drain(self) -> None:
        """Empty the queue, so that no caller waits for a logger that failed."""
        try:
            while True:
                self._calls.get_nowait()
        except queue.Empty:
            pass
