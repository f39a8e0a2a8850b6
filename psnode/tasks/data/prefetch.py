"""Batches made in the background during the computation on the current batch."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from psnode.task import Batch, Data
from psnode.tasks.data.sampler import Sampler


class _Failed:
    """An exception that the thread passes to the reader."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Ahead:
    """Iterator over the steps of `make()`, each of which is a list of batches. A thread keeps up to `depth` steps ready.

    An exception in the thread is raised by the `next` call that would have returned the missing step, and by every later
    call.
    """

    def __init__(self, make: Callable[[], Iterator[list[Batch]]], depth: int = 2) -> None:
        self._ready: queue.Queue[list[Batch] | _Failed] = queue.Queue(depth)
        self._stop = threading.Event()
        self._end: _Failed | None = None
        self._thread = threading.Thread(target=self._make, args=(make,), name="prefetch", daemon=True)
        self._thread.start()

    def _make(self, make: Callable[[], Iterator[list[Batch]]]) -> None:
        try:
            for step in make():
                if self._stop.is_set():
                    return
                self._ready.put(step)
            self._ready.put(_Failed(StopIteration()))
        except BaseException as error:  # the reader raises it
            self._ready.put(_Failed(error))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[Batch]:
        if self._end is None:
            item = self._ready.get()
            if not isinstance(item, _Failed):
                return item
            self._end = item
        raise self._end.error

    def close(self) -> None:
        """End the thread and wait until it has ended. A step in progress is finished first. Further calls have no effect."""
        self._stop.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._ready.get_nowait()
            self._thread.join(0.01)
        self._end = self._end or _Failed(StopIteration())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Prefetch(Ahead):
    """Iterator over the batches of the steps after `finished` up to and including `last`, one list per step.

    A single thread makes all batches in order, so `data` never handles two calls simultaneously.
    """

    def __init__(self, data: Data, sampler: Sampler, finished: int, last: int, depth: int = 2) -> None:
        wanted = sampler.wanted(finished + 1, last)
        super().__init__(lambda: ([data.batch(indices, rng) for indices, rng in step] for step in wanted), depth)
