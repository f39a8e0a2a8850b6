"""Processes that run only a part of the time, so that any program in them is really slow."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator

PERIOD = 0.1


@contextlib.contextmanager
def slowed(pid: int, factor: float) -> Iterator[None]:
    """Within the context, let `pid` run for 1 / `factor` of the time, by stopping and continuing it ten times per second."""
    end = threading.Event()

    def duty() -> None:
        with contextlib.suppress(ProcessLookupError):
            while not end.is_set():
                os.kill(pid, signal.SIGSTOP)
                end.wait(PERIOD * (1 - 1 / factor))
                os.kill(pid, signal.SIGCONT)
                end.wait(PERIOD / factor)

    thread = threading.Thread(target=duty, daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
