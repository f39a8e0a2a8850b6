"""Processes that several threads wait for, and that end together when the user interrupts."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

_AT_ONCE = 32  # connections

Item = TypeVar("Item")
Result = TypeVar("Result")


class Children:
    """The processes of one command."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[Any]] = set()
        self._interrupted = False

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """`work` on all items, several at once. The first error is raised when all have ended; an interrupt ends them."""
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            return [future.result() for future in [pool.submit(work, item) for item in items]]
        except KeyboardInterrupt:
            with self._lock:
                self._interrupted = True
                for process in self._running:
                    process.terminate()
            raise
        finally:
            pool.shutdown(cancel_futures=self._interrupted)

    def run(self, line: Sequence[str], text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command that reads `text`."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.started(line, text=True, **pipes) as process:
            out, err = process.communicate(text)
        return subprocess.CompletedProcess(line, process.returncode, out, err)

    @contextmanager
    def started(self, line: Sequence[str], **how: Any) -> Iterator[subprocess.Popen[Any]]:
        """A process, which has ended afterwards. Raises KeyboardInterrupt if another thread had one."""
        with self._lock:
            if self._interrupted:
                raise KeyboardInterrupt
            process = subprocess.Popen(line, **how)
            self._running.add(process)
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        finally:
            process.wait()
            with self._lock:
                self._running.discard(process)
