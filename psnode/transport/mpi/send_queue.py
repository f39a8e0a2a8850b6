"""Messages in transit to one rank. MPI gets only a limited number of parts at a time; the rest waits in a queue, in order."""

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
    """A message with `flying` parts in transit, which may leave in any order.

    `queued`: True until its last part is given to MPI.
    """

    def __init__(self, parts: Iterator[Part], finish: Finish) -> None:
        self.parts, self.finish = parts, finish
        self.flying, self.queued = 0, True

    def look(self) -> None:
        """Call `finish` if all parts have left."""
        if not self.queued and not self.flying:
            self.finish()


class Outgoing:
    """The messages to one rank. `start(part, then)` sends an MPI message and calls `then(error)` when it has left.

    `size` is told of all bytes that leave. `window`: returns, when called, the number of parts that the receiver takes
    simultaneously.
    """

    def __init__(self, start: Start, size: PieceSize, window: Callable[[], int]) -> None:
        self._start, self._size, self._window = start, size, window
        self._queue: deque[_OutgoingMessage] = deque()
        self._flying = 0
        self._dropped = False

    @property
    def busy(self) -> bool:
        """True while some message has not left."""
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
        """Give parts to MPI until the number in transit reaches the receiver's window, plus a few more."""
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
        """Drop all queued parts, since the rank is lost. Sends that MPI has already begun end with an error."""
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
