"""Messages in transit to one rank. MPI gets a bounded number of them at a time; the others are queued here in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from psnode.transport.base import Bytes
from psnode.transport.mpi.requests import Then

# Enough to keep a link busy while the receiver takes two at a time, but few enough to test all in one call.
WINDOW = 8

Start = Callable[[Bytes, int, Then], None]
Finish = Callable[[], None]


class _Queued(NamedTuple):
    data: Bytes
    mpi_tag: int
    finish: Finish | None


class Outgoing:
    """The messages to one rank. `start(data, mpi_tag, then)` sends an MPI message and calls `then(error)` when it has left."""

    def __init__(self, start: Start) -> None:
        self._start = start
        self._queue: deque[_Queued] = deque()
        self._flying = 0
        self._dropped = False

    @property
    def busy(self) -> bool:
        """True while any message has not left."""
        return bool(self._queue) or self._flying > 0

    def put(self, parts: Iterable[tuple[Bytes, int]], finish: Finish) -> None:
        """Queue the parts of one message. `finish()` is called when all parts have left or are dropped."""
        if self._dropped:
            finish()
            return
        self._queue.extend(_Queued(data, mpi_tag, None) for data, mpi_tag in parts)
        self._queue.append(self._queue.pop()._replace(finish=finish))
        self.advance()

    def advance(self) -> None:
        """Give MPI as many messages as the window allows."""
        while self._queue and self._flying < WINDOW:
            part = self._queue.popleft()
            self._flying += 1
            self._start(part.data, part.mpi_tag, partial(self._left, part.finish))

    def drop(self) -> None:
        """Drop all queued messages, since the rank is lost. Messages that MPI already has end with an error."""
        self._dropped = True
        while self._queue:
            part = self._queue.popleft()
            if part.finish is not None:
                part.finish()

    def _left(self, finish: Finish | None, error: int) -> None:
        self._flying -= 1
        if finish is not None:
            finish()
        self.advance()
