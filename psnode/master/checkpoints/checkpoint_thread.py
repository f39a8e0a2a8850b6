"""The thread that writes checkpoints. It does pieces of work in order, and passes their results to the calling thread."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from psnode.config.cores import stand_back
from psnode.errors import CheckpointError
from psnode.records.timeline import Tracer

Work = Callable[[], str | None]
Then = Callable[[str | None, Exception | None], None]


class CheckpointNews(NamedTuple):
    """The event in the master's inbox after a piece of checkpoint work has finished or failed."""


class CheckpointThread:
    """Runs checkpoint work in one thread.

    That thread calls `tell` with CheckpointNews after each piece of work that `do` has queued. If such work raises an exception
    other than OSError and CheckpointError, the thread also calls `tell` with this exception.
    """

    def __init__(self, tell: Callable[[object], None], tracer: Tracer) -> None:
        self._tell, self._tracer = tell, tracer
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._left = 0

    def do(self, step: int, work: Work, then: Then = lambda result, error: None) -> None:
        """Queue `work` on the checkpoint of `step`.

        Later `settle` calls `then` with two arguments: the result of `work`, and the OSError or CheckpointError that it
        raised, or None.
        """
        self._left += 1
        self._executor.submit(self._run, step, work, then)

    def prepare(self, work: Callable[[], None]) -> None:
        """Queue `work` that belongs to no checkpoint. `busy` and `settle` ignore it."""

        def run() -> None:
            with self._tracer.span("prepare"):
                work()

        self._executor.submit(run)

    @property
    def busy(self) -> bool:
        """True if some queued work is not done, or if `settle` has not yet passed on its result."""
        return bool(self._left)

    def settle(self) -> None:
        """Call `then` for all work done since the last call. Call this in the thread that queued the work."""
        with suppress(queue.Empty):
            while True:
                follow = self._done.get_nowait()
                self._left -= 1
                follow()

    def wait(self) -> None:
        """Block until all queued work is done."""
        self._executor.submit(int).result()

    def close(self) -> None:
        """Block until all queued work is done, and end the thread."""
        self._executor.shutdown()

    def _run(self, step: int, work: Work, then: Then) -> None:
        result: str | None = None
        problem: Exception | None = None
        stand_back()
        try:
            with self._tracer.span("checkpoint", step=step):
                result = work()
        except (OSError, CheckpointError) as error:
            problem = error
        except Exception as error:  # the owner of the inbox raises it
            self._tell(error)
        self._done.put(partial(then, result, problem))
        self._tell(CheckpointNews())
