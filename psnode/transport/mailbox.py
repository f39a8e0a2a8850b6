"""A queue with one reader, whose waits end in time even if signals arrive."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """Unbounded, first in, first out. Any thread may put, a signal's handler too; one thread takes.

    `queue.SimpleQueue` has the same methods, but its wait is endless if a signal's handler lasts beyond the timeout, as after
    SIGSTOP, SIGTERM and SIGCONT (CPython 3.11 and 3.12 take the negative rest for "no timeout"). A handler must not put to a
    `queue.Queue`.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._news = threading.Lock()  # free if something may have come since the reader last looked
        self._news.acquire()

    def put(self, item: T) -> None:
        """Append an item, and wake the reader."""
        self._items.append(item)
        with contextlib.suppress(RuntimeError):  # it is free already: no reader waits
            self._news.release()

    def empty(self) -> bool:
        """Return True if the queue is empty now."""
        return not self._items

    def get_nowait(self) -> T:
        """Return the next item; raises queue.Empty if there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            raise queue.Empty from None

    def get(self, timeout: float) -> T:
        """Return the next item; raises queue.Empty if none comes within `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self._items:
            if not self._news.acquire(timeout=max(0.0, end - time.monotonic())):
                break
        return self.get_nowait()
