"""The thread that writes checkpoints: pieces of work in their order, and their outcomes for the thread that asked for them."""

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
    """An event in the master's inbox: a piece of a checkpoint is written, or cannot be."""


class CheckpointThread:
    """`tell` is called in the thread when there is an outcome, or with an error that the disk did not cause."""

    def __init__(self, tell: Callable[[object], None], tracer: Tracer) -> None:
        self._tell, self._tracer = tell, tracer
        self._done: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._left = 0

    def do(self, step: int, work: Work, then: Then = lambda result, error: None) -> None:
        """Do `work` on the checkpoint of `step`, after all that was asked for before.

        `settle` calls `then` with its result, or with the error of a disk that does not take it.
        """
        self._left += 1
        self._executor.submit(self._run, step, work, then)

    def prepare(self, work: Callable[[], None]) -> None:
        """Do `work` that belongs to no checkpoint, and do not wait for its end."""

        def run() -> None:
            with self._tracer.span("prepare"):
                work()

        self._executor.submit(run)

    @property
    def busy(self) -> bool:
        """True until all work is done and settled."""
        return bool(self._left)

    def settle(self) -> None:
        """Call `then` for all work that was done since the last call, in the thread that asked for it."""
        with suppress(queue.Empty):
            while True:
                follow = self._done.get_nowait()
                self._left -= 1
                follow()

    def wait(self) -> None:
        """Return when all that was asked for is done."""
        self._executor.submit(int).result()

    def close(self) -> None:
        """End the thread when all that was asked for is done."""
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
