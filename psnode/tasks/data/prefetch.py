"""The next batches, made in the background during the computation on the current one."""

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
    """An exception on its way from the thread to the reader."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Ahead:
    """An iterator over the steps of `make()`, each a list of batches, which a thread makes at most `depth` steps ahead.

    An exception is raised by the `next` that would have returned the missing batch, and by every later one.
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
        """End the thread and wait for it; a batch in progress is finished first. Idempotent."""
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
    """The batches of the steps after `finished` up to and including `last`, one list per step.

    One thread makes them in order, so `data` sees one call at a time.
    """

    def __init__(self, data: Data, sampler: Sampler, finished: int, last: int, depth: int = 2) -> None:
        wanted = sampler.wanted(finished + 1, last)
        super().__init__(lambda: ([data.batch(indices, rng) for indices, rng in step] for step in wanted), depth)
