"""Whole jobs over the loopback transport, whose ends a test can wrap to count or change messages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

import psnode
from psnode.config import Config
from psnode.master import lead
from psnode.protocol.messages import Hello
from psnode.tasks.loading import make_task
from psnode.transport.base import Buffer, Pending, Transport
from psnode.worker import work


class Wrapped(Transport):
    """An end of a transport that forwards all calls to another end."""

    def __init__(self, end: Transport) -> None:
        self.rank, self.size, self.inboxes, self.local_rank = end.rank, end.size, end.inboxes, end.local_rank
        self._end = end

    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        return self._end.send(rank, tag, buffers)

    def alive(self) -> frozenset[int]:
        return self._end.alive()

    def close(self, seconds: float = 5.0) -> None:
        self._end.close(seconds)


def train(ends: Sequence[Transport], config: Config) -> int:
    """Run a whole job, with the master at the first of `ends` and a worker at each other end, and return the exit code."""
    torch_lock, hello = threading.RLock(), Hello("host", 1, psnode.__version__, "").to_bytes()

    def be_worker(end: Transport) -> None:
        with contextlib.closing(end):
            work(end, config, make_task, hello, torch_lock)

    threads = [threading.Thread(target=be_worker, args=(end,), daemon=True) for end in ends[1:]]
    for thread in threads:
        thread.start()
    with ends[0] as end:
        code = lead(end, config, make_task, hello)
    for thread in threads:
        thread.join(60)
    return code
