"""A queue with one reader whose waits end in time even if signals arrive."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """An unbounded first-in-first-out queue. Any thread and any signal handler may put items; one thread takes them.

    `queue.SimpleQueue` has the same methods, but its wait never ends if a signal handler runs past the timeout, as after SIGSTOP,
    SIGTERM and SIGCONT (CPython 3.11 and 3.12 take the negative remaining time for "no timeout"). `queue.Queue` is unsuitable,
    since a signal handler must not put items into it.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._news = threading.Lock()  # free if something may have come since the reader last looked
        self._news.acquire()

    def put(self, item: T) -> None:
        """Append an item, and wake the reader."""
        self._items.append(item)
        with contextlib.suppress(RuntimeError):  # the lock is free already, so no reader waits
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
