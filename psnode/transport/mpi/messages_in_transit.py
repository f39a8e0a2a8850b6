"""Messages in transit between this rank and all other ranks over one MPI communicator, for the thread that calls MPI."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psnode.errors import TransportError
from psnode.transport.base import Arrival, Bytes, Inboxes, PeerLost
from psnode.transport.mpi.deaths import Deaths
from psnode.transport.mpi.farewell import Farewell
from psnode.transport.mpi.fragments import Fragment, Part, cut, join_tag
from psnode.transport.mpi.incoming import Incoming
from psnode.transport.mpi.piece_size import PieceSize
from psnode.transport.mpi.requests import Requests, Then
from psnode.transport.mpi.round_trip import Window
from psnode.transport.mpi.send_queue import Outgoing
from psnode.transport.pool import Pool, PooledBuffer
from psnode.transport.sending import Send

# A rank's loss is announced at most this number of seconds late, while its last messages may still complete or fail.
_LAST_WORDS_SECONDS = 1.0
# Limit of messages matched between two tests of the operations in progress: enough for any burst, few enough not to delay sends.
_PROBES = 64
_EMPTY = np.empty(0, np.uint8)


class Message(NamedTuple):
    """A message for `rank`, and its Send, which is finished when the message has left."""

    rank: int
    tag: int
    block: PooledBuffer
    send: Send


class Traffic:
    """Sends and receives the messages of this rank.

    `mpi`: the module mpi4py.MPI, already initialised. `sent(rank)` is called after each MPI message to `rank`.
    """

    def __init__(self, mpi: Any, inboxes: Inboxes, pool: Pool, piece_bytes: int, sent: Callable[[int], object]) -> None:
        self._mpi, self._world = mpi, mpi.COMM_WORLD
        self._inboxes, self._pool, self._sent = inboxes, pool, sent
        self._world.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.alive = frozenset(range(self.size))
        self._status = mpi.Status()
        self._requests = Requests(mpi)
        self._window = Window()
        self._sizes = [PieceSize(piece_bytes) for _ in range(self.size)]
        self._outgoing = [Outgoing(partial(self._isend, rank), size, self._window) for rank, size in enumerate(self._sizes)]
        self._incoming = [self._new_incoming(rank) for rank in range(self.size)]
        self._unfinished: set[Send] = set()
        self._deaths = Deaths(mpi, self._world)
        self._dying: dict[int, tuple[float, str]] = {}
        self._farewell = Farewell(self.rank)

    @property
    def busy(self) -> bool:
        """True while MPI operations are in progress."""
        return len(self._requests) > 0

    def put(self, message: Message) -> None:
        """Queue a message, which is sent as soon as earlier messages allow."""

        def finish() -> None:
            message.block.release()
            self._unfinished.discard(message.send)
            message.send.finish()

        self._unfinished.add(message.send)
        size = self._sizes[message.rank]
        self._outgoing[message.rank].put(cut(message.block.data, message.tag, size, size.whole), finish)

    def probe(self) -> bool:
        """Begin to receive the messages that have arrived. Return True if there are any, or if a rank has died."""
        found = misses = 0
        while found < _PROBES and misses < 2:  # a probe lets MPI make progress, so the probe after a miss may find a message
            try:
                handle = self._world.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, self._status)
            except self._mpi.Exception as error:
                if not self._deaths.is_one(error):
                    raise
                self.look_for_deaths()
                return True
            if handle is None:
                misses += 1
            else:
                found += 1
                source, mpi_tag = self._status.Get_source(), self._status.Get_tag()
                self._incoming[source].match(handle, mpi_tag, self._status.Get_count(self._mpi.BYTE))
        return found > 0

    def test(self) -> bool:
        """Let MPI move bytes, and handle the operations that have ended. Return True if any operation has ended."""
        return self._requests.test()

    def look_for_deaths(self) -> None:
        """Record new dead ranks. Announce the loss of a rank when its last messages have been delivered or are overdue."""
        for rank in self._deaths.new():
            self._lose(rank, "its process has died")
        for rank, (deadline, reason) in list(self._dying.items()):
            if not self._incoming[rank].busy or time.monotonic() > deadline:
                del self._dying[rank]
                self._inboxes.tell(PeerLost(rank, reason))

    @property
    def dying(self) -> bool:
        """True while the loss of some rank is known but not announced yet."""
        return bool(self._dying)

    def take_leave(self) -> bool:
        """Send the farewells that are due. Return True when everything is sent and all living ranks have agreed to leave."""
        if self._dying or any(self._outgoing[rank].busy for rank in self.alive):
            return False
        due = self._farewell.due(self.alive)
        for rank in due:
            self._outgoing[rank].put(iter([Part(_EMPTY, join_tag(0, Fragment.FAREWELL), True)]), _nothing)
        return not due and self._farewell.agreed(self.alive)

    def give_up(self, error: Exception | None) -> None:
        """Finish all unsent messages with `error`, since no more messages are sent."""
        for send in self._unfinished:
            send.finish(error or TransportError("the transport was closed before it was sent"))

    def _new_incoming(self, rank: int) -> Incoming:
        return Incoming(self._pool, self._irecv, partial(self._deliver, rank), partial(self._lose, rank), self._window)

    def _isend(self, rank: int, part: Part, then: Then) -> None:
        def left(error: int) -> None:
            if error:
                self._lose(rank, "a send to it failed")
            then(error)

        try:
            request = self._world.Isend([part.data, part.data.size, self._mpi.BYTE], rank, part.mpi_tag)
        except self._mpi.Exception as error:
            left(error.Get_error_code())
        else:
            self._requests.add(request, left)
            self._sent(rank)

    def _irecv(self, handle: Any, data: Bytes, then: Then) -> None:
        try:
            request = handle.Irecv([data, data.size, self._mpi.BYTE])
        except self._mpi.Exception as error:
            then(error.Get_error_code())
        else:
            self._requests.add(request, then)

    def _deliver(self, source: int, tag: int, part: Fragment, block: PooledBuffer) -> None:
        if part is Fragment.FAREWELL:
            self._farewell.hear(source)
        else:
            self._inboxes.deliver(Arrival(source, tag, block.data, block.release))

    def _lose(self, rank: int, reason: str) -> None:
        """Send nothing more to `rank`. Its loss is announced after the last messages from it have been delivered."""
        if rank in self.alive and rank != self.rank:
            self.alive -= {rank}
            self._dying[rank] = (time.monotonic() + _LAST_WORDS_SECONDS, reason)
            self._outgoing[rank].drop()


def _nothing() -> None:
    """Do nothing. This is the callback of a farewell, for which no thread waits."""
