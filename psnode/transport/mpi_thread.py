"""The one thread of a process that calls MPI: it sends, probes, receives, notices deaths, and sleeps in between."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psnode.errors import TransportError
from psnode.transport.base import Arrival, Bytes, Inbox, PeerLost
from psnode.transport.deaths import Deaths
from psnode.transport.environment import job_name, place
from psnode.transport.farewell import Farewell
from psnode.transport.incoming import Incoming
from psnode.transport.listening import Listener, Woken, can_listen
from psnode.transport.outgoing import Outgoing
from psnode.transport.pace import MOVED_NANOSECONDS, Pace
from psnode.transport.pieces import Part, cut, join_tag
from psnode.transport.pool import Block, Pool
from psnode.transport.requests import Requests, Then
from psnode.transport.sending import Send
from psnode.transport.unlocked import finalize, init_thread

# How long a lost rank's last messages may take to complete or fail before its loss is announced without them.
_LAST_WORDS_SECONDS = 1.0
# Messages matched between two tests of what is under way: enough for any burst, few enough not to hold up sends.
_PROBES = 64
_LOOK_SECONDS = 0.05
_EMPTY = np.empty(0, np.uint8)


class Message(NamedTuple):
    """An order to the thread: send this."""

    rank: int
    tag: int
    block: Block
    send: Send


class Call(NamedTuple):
    """An order to the thread: call this with the module mpi4py.MPI, between two polls. It must not raise."""

    function: Callable[[Any], object]


class MpiThread:
    """`mpi` is the module mpi4py.MPI; `run` is the thread's body. Other threads use `orders`, `close` and the flags."""

    def __init__(self, mpi: Any, inbox: Inbox, pool: Pool, piece_bytes: int) -> None:
        self.orders: queue.SimpleQueue[Message | Call | None] = queue.SimpleQueue()
        self.started, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.alive: frozenset[int] = frozenset()
        self.rank = self.size = 0
        self.agreed = False  # everybody left together
        self._mpi, self._inbox, self._pool, self._piece_bytes = mpi, inbox, pool, piece_bytes
        self._owner = False
        self._closing_deadline: float | None = None
        self._dying: dict[int, tuple[float, str]] = {}
        self._listener: Listener | None = None
        self._listening = False
        self._next_look = 0.0

    def order(self, order: Message | Call | None) -> None:
        """Leave an order; the thread gets to it at once unless MPI itself holds it up."""
        self.orders.put(order)
        if self._listening and self._listener is not None:
            self._listener.wake()
        if self.ended.is_set():
            self.sweep()

    def close(self, seconds: float) -> None:
        """Ask the thread to finish what is queued, take leave of the others and end; returns at once."""
        self._closing_deadline = time.monotonic() + seconds
        self.order(None)

    def sweep(self) -> None:
        """End every order that the thread will not carry out any more."""
        while True:
            try:
                order = self.orders.get_nowait()
            except queue.Empty:
                return
            if isinstance(order, Message):
                order.send.finish(self.error or TransportError("the transport has closed"))

    def run(self) -> None:
        """Initialise MPI, poll until closed, finalise it if everybody leaves together."""
        try:
            self._begin()
            self.started.set()
            self._poll_until_closed()
            if self._owner and self.agreed:
                finalize(self._mpi)
        except Exception as error:
            self.agreed = False
            self.error = error
            self._inbox.post(TransportError(f"MPI failed on rank {self.rank}: {type(error).__name__}: {error}"))
        finally:
            self.ended.set()
            self.started.set()
            self.sweep()

    def _begin(self) -> None:
        mpi = self._mpi
        found = place()
        if can_listen():  # before MPI_Init, which is a barrier: whoever sends finds every doorbell
            self._listener = Listener(job_name(), found.rank if found else 0)
        self._owner = not mpi.Is_initialized()
        level = init_thread(mpi) if self._owner else mpi.Query_thread()
        if not self._owner and level < mpi.THREAD_SERIALIZED:
            raise TransportError("MPI was initialised without thread support: initialise it with MPI_THREAD_SERIALIZED or more")
        self._world = mpi.COMM_WORLD
        self._world.Set_errhandler(mpi.ERRORS_RETURN)
        self.rank, self.size = self._world.Get_rank(), self._world.Get_size()
        self.alive = frozenset(range(self.size))
        self._status = mpi.Status()
        self._requests = Requests(mpi)
        self._farewell = Farewell(self.rank)
        self._outgoing = [Outgoing(partial(self._isend, rank)) for rank in range(self.size)]
        self._incoming = [self._new_incoming(rank) for rank in range(self.size)]
        self._deaths = Deaths(mpi, self._world)

    def _new_incoming(self, rank: int) -> Incoming:
        return Incoming(self._pool, self._irecv, partial(self._deliver, rank), partial(self._lose, rank))

    def _poll_until_closed(self) -> None:
        pace, woken = Pace(self._listener is not None), None
        while not self._may_leave():
            before = time.thread_time_ns()
            arrived = self._probe()
            busy = len(self._requests) > 0
            moved = self._requests.test() or arrived or (busy and time.thread_time_ns() - before > MOVED_NANOSECONDS)
            if not moved or self._dying:
                self._look_for_deaths()
            if arrived and self._listener is not None:
                if woken is Woken.TIMEOUT or (woken is None and pace.deaf):
                    woken = self._listener.wait(0)  # could it have been heard, a moment later?
                pace.judge(woken)
                if woken is Woken.TIMEOUT:
                    self._look_for_sockets()
            nap = pace.next(moved, busy, woken)
            woken = self._listen(nap.seconds) if nap.listening else None
            self._take_orders(0.0 if nap.listening else nap.seconds)

    def _listen(self, seconds: float) -> Woken:
        assert self._listener is not None
        self._listening = True  # from here on an order wakes the listener; what came before is in the queue
        try:
            return self._listener.wait(seconds) if self.orders.empty() else Woken.ORDER
        finally:
            self._listening = False

    def _look_for_sockets(self) -> None:
        """A message came unheard: MPI has opened a connection since the last look, or it has none."""
        if self._listener is not None and time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._listener.look()

    def _take_orders(self, seconds: float) -> None:
        """Carry out what is queued; doze first if nothing is, but not beyond the first order."""
        try:
            order = self.orders.get(timeout=seconds) if seconds else self.orders.get_nowait()
            while True:
                if isinstance(order, Message):
                    self._put(order)
                elif isinstance(order, Call):
                    order.function(self._mpi)
                order = self.orders.get_nowait()
        except queue.Empty:
            pass

    def _put(self, order: Message) -> None:
        def finish() -> None:
            order.block.release()
            order.send.finish()

        self._outgoing[order.rank].put(cut(order.block.data, order.tag, self._piece_bytes), finish)

    def _isend(self, rank: int, data: Bytes, mpi_tag: int, then: Then) -> None:
        def left(error: int) -> None:
            if error:
                self._lose(rank, "a send to it failed")
            then(error)

        try:
            request = self._world.Isend([data, data.size, self._mpi.BYTE], rank, mpi_tag)
        except self._mpi.Exception as error:
            left(error.Get_error_code())
        else:
            self._requests.add(request, left)
            if self._listener is not None:
                self._listener.knock(rank)

    def _irecv(self, handle: Any, data: Bytes, then: Then) -> None:
        try:
            request = handle.Irecv([data, data.size, self._mpi.BYTE])
        except self._mpi.Exception as error:
            then(error.Get_error_code())
        else:
            self._requests.add(request, then)

    def _probe(self) -> bool:
        """Match what has come, _PROBES messages at most; True if there was anything."""
        found = misses = 0
        while found < _PROBES and misses < 2:  # a probe that finds nothing makes MPI look, the next one sees it
            try:
                handle = self._world.Improbe(self._mpi.ANY_SOURCE, self._mpi.ANY_TAG, self._status)
            except self._mpi.Exception as error:
                if not self._deaths.is_one(error):
                    raise
                self._look_for_deaths()
                return True
            if handle is None:
                misses += 1
            else:
                found += 1
                source, mpi_tag = self._status.Get_source(), self._status.Get_tag()
                self._incoming[source].match(handle, mpi_tag, self._status.Get_count(self._mpi.BYTE))
        return found > 0

    def _deliver(self, source: int, tag: int, part: Part, block: Block) -> None:
        if part is Part.FAREWELL:
            self._farewell.hear(source)
        else:
            self._inbox.post(Arrival(source, tag, block.data, block.release))

    def _look_for_deaths(self) -> None:
        for rank in self._deaths.new():
            self._lose(rank, "its process has died")
        for rank, (deadline, reason) in list(self._dying.items()):
            if not self._incoming[rank].busy or time.monotonic() > deadline:
                del self._dying[rank]
                self._inbox.post(PeerLost(rank, reason))

    def _lose(self, rank: int, reason: str) -> None:
        """Send nothing more to `rank`; what has come from it is still delivered, then its loss is announced."""
        if rank in self.alive and rank != self.rank:
            self.alive -= {rank}
            self._dying[rank] = (time.monotonic() + _LAST_WORDS_SECONDS, reason)
            self._outgoing[rank].drop()

    def _may_leave(self) -> bool:
        """True when everything is sent and all who are alive leave too, or when there is no more time."""
        if self._closing_deadline is None:
            return False
        if time.monotonic() > self._closing_deadline:
            return True
        if self._dying or any(self._outgoing[rank].busy for rank in self.alive):
            return False
        due = self._farewell.due(self.alive)
        for rank in due:
            self._outgoing[rank].put([(_EMPTY, join_tag(0, Part.FAREWELL))], _nothing)
        leave = not due and self._farewell.agreed(self.alive)
        self.agreed = leave and len(self.alive) == self.size
        return leave


def _nothing() -> None:
    """Nobody waits for a farewell to be sent."""
