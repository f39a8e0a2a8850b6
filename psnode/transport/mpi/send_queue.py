"""Messages in transit to one rank. MPI gets a bounded number of them at a time; the rest wait in a queue, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial

from psnode.transport.mpi.fragments import Part
from psnode.transport.mpi.piece_size import PieceSize
from psnode.transport.mpi.requests import Then

# Number of MPI messages that are announced to the receiver in addition to those that it receives now: enough to keep a link busy,
# and few enough to test all of them in one call.
AHEAD = 6

Start = Callable[[Part, Then], None]
Finish = Callable[[], None]


class _OutgoingMessage:
    """A message with `flying` parts in transit, which MPI may end in any order. `queued`: True while parts have not left."""

    def __init__(self, parts: Iterator[Part], finish: Finish) -> None:
        self.parts, self.finish = parts, finish
        self.flying, self.queued = 0, True

    def look(self) -> None:
        """Finish if all parts have left."""
        if not self.queued and not self.flying:
            self.finish()


class Outgoing:
    """The messages to one rank. `start(part, then)` sends an MPI message and calls `then(error)` when it has left.

    `size` is informed of all bytes that leave. `window`: returns the number of messages that the receiver takes simultaneously.
    """

    def __init__(self, start: Start, size: PieceSize, window: Callable[[], int]) -> None:
        self._start, self._size, self._window = start, size, window
        self._queue: deque[_OutgoingMessage] = deque()
        self._flying = 0
        self._dropped = False

    @property
    def busy(self) -> bool:
        """True while any message has not left."""
        return bool(self._queue) or self._flying > 0

    def put(self, parts: Iterator[Part], finish: Finish) -> None:
        """Queue a message. Each part is taken from `parts` only when it can leave.

        `finish()` is called when all parts have left or are dropped.
        """
        if self._dropped:
            finish()
            return
        self._queue.append(_OutgoingMessage(parts, finish))
        self._advance()

    def _advance(self) -> None:
        """Give MPI as many messages as the window allows."""
        while self._queue and self._flying < self._window() + AHEAD:
            message = self._queue[0]
            part = next(message.parts)
            if part.last:
                message.queued = False
                self._queue.popleft()
            message.flying += 1
            self._flying += 1
            self._size.began()
            self._start(part, partial(self._left, message, part.data.size))

    def drop(self) -> None:
        """Drop all queued parts, since the rank is lost. The parts that MPI already has end with an error."""
        self._dropped = True
        while self._queue:
            message = self._queue.popleft()
            message.queued = False
            message.look()

    def _left(self, message: _OutgoingMessage, nbytes: int, error: int) -> None:
        message.flying -= 1
        self._flying -= 1
        self._size.left(nbytes)
        message.look()
        self._advance()
