"""A queue with one reader. A wait of the reader ends at its timeout even if signals arrive."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Mailbox(Generic[T]):
    """An unbounded first-in-first-out queue. Any thread and any signal handler may put items; only one thread takes them.

    `queue.SimpleQueue` has the same methods, but its wait never ends if a signal handler is still running when the timeout
    expires, for example after SIGSTOP, SIGTERM and SIGCONT. (CPython 3.11 and 3.12 interpret the negative remaining time as "no
    timeout".) `queue.Queue` is unsuitable, since a signal handler must not put items into it.
    """

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._news = threading.Lock()  # free if an item may have come since the reader last looked
        self._news.acquire()

    def put(self, item: T) -> None:
        """Append an item, and wake the reader."""
        self._items.append(item)
        with contextlib.suppress(RuntimeError):  # the lock is already free, so no reader waits
            self._news.release()

    def empty(self) -> bool:
        """Return True if the queue is empty now."""
        return not self._items

    def get_nowait(self) -> T:
        """Return the next item. Raises queue.Empty if the queue is empty."""
        try:
            return self._items.popleft()
        except IndexError:
            raise queue.Empty from None

    def get(self, timeout: float) -> T:
        """Return the next item. Raises queue.Empty if no item comes within `timeout` seconds."""
        end = time.monotonic() + timeout
        while not self._items:
            if not self._news.acquire(timeout=max(0.0, end - time.monotonic())):
                break
        return self.get_nowait()
