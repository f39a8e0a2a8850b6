"""The only thread of a process that calls MPI. From MPI_Init to MPI_Finalize, it moves messages or sleeps."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from psnode.errors import TransportError
from psnode.transport.base import Inboxes
from psnode.transport.mailbox import Mailbox
from psnode.transport.mpi.environment import job_name, local_rank, on_one_host, place
from psnode.transport.mpi.listening import Listener, Woken, can_listen
from psnode.transport.mpi.messages_in_transit import Message, Traffic
from psnode.transport.mpi.pace import MOVED_NANOSECONDS, Pace
from psnode.transport.mpi.unlocked import finalize, init_thread
from psnode.transport.pool import Pool

_LOOK_SECONDS = 0.05
_DEATHS_SECONDS = 0.01


class Call(NamedTuple):
    """An order to the thread to call `function(mpi4py.MPI)` between two polls. The function must not raise."""

    function: Callable[[Any], object]


class MpiThread:
    """The thread that calls MPI. `run` is its body; the other methods are for other threads. `mpi`: the module mpi4py.MPI.

    `started` and `ended` are events. After `started` is set, `traffic` exists unless there is an `error`. After `ended` is
    set, `agreed` is True if all ranks have left together.
    """

    traffic: Traffic

    def __init__(self, mpi: Any, inboxes: Inboxes, pool: Pool, piece_bytes: int) -> None:
        self.started, self.ended = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.agreed = False
        self.local_rank = 0
        self._orders: Mailbox[Message | Call | None] = Mailbox()
        self._mpi, self._inboxes, self._pool, self._piece_bytes = mpi, inboxes, pool, piece_bytes
        self._closing_deadline: float | None = None
        self._listener: Listener | None = None
        self._listening = False
        self._next_look = 0.0
        self._next_deaths = 0.0

    def order(self, order: Message | Call | None) -> None:
        """Queue an order. The MPI thread carries it out immediately, unless a call of MPI blocks the thread."""
        self._orders.put(order)
        if self._listening and self._listener is not None:
            self._listener.wake()
        if self.ended.is_set():
            self._sweep()

    def absent(self) -> list[int]:
        """Return, while MPI_Init blocks, the ranks that have not called it yet.

        The list is empty unless all ranks are on this host.
        """
        found = place()
        if found is None or self._listener is None or job_name() is None or not on_one_host():
            return []
        return [rank for rank in range(found.size) if not self._listener.knock(rank)]

    def close(self, seconds: float) -> None:
        """Ask the thread to send all queued messages, agree with the other ranks to leave, and end. Return immediately.

        `seconds`: the time after which the thread ends even without agreement.
        """
        self._closing_deadline = time.monotonic() + seconds
        self.order(None)

    def run(self) -> None:
        """Initialise MPI, poll until the transport is closed, and finalise MPI if all ranks leave together."""
        try:
            owner = self._begin()
            self.started.set()
            self._poll_until_closed()
            if owner and self.agreed:
                finalize(self._mpi)
        except Exception as error:
            self.agreed, self.error = False, error
            self._inboxes.tell(TransportError(f"MPI failed on rank {_rank()}: {type(error).__name__}: {error}"))
        finally:
            if hasattr(self, "traffic"):
                self.traffic.give_up(self.error)
            self.ended.set()
            self.started.set()
            self._sweep()

    def _begin(self) -> bool:
        """Initialise MPI and the traffic. Return True if MPI was not initialised before."""
        mpi = self._mpi
        if can_listen():  # before MPI_Init: MPI_Init is a barrier, so all doorbells exist after it
            self._listener = Listener(job_name(), _rank())
        owner = not mpi.Is_initialized()
        level = init_thread(mpi) if owner else mpi.Query_thread()
        if not owner and level < mpi.THREAD_SERIALIZED:
            raise TransportError("MPI was initialised without thread support: initialise it with MPI_THREAD_SERIALIZED or more")
        self.local_rank = _local_rank(mpi)
        knock = self._listener.knock if self._listener is not None else _nobody_listens
        self.traffic = Traffic(mpi, self._inboxes, self._pool, self._piece_bytes, knock)
        return owner

    def _poll_until_closed(self) -> None:
        traffic, pace, woken = self.traffic, Pace(self._listener is not None), None
        while not self._may_leave():
            before = time.thread_time_ns() if traffic.busy else None
            arrived = traffic.probe()
            busy = traffic.busy
            moved = traffic.test() or arrived or (before is not None and time.thread_time_ns() - before > MOVED_NANOSECONDS)
            if not moved or traffic.dying:
                self._look_for_deaths()
            if arrived and self._listener is not None:
                if woken is Woken.TIMEOUT or (woken is None and pace.deaf):
                    woken = self._listener.wait(0)  # check if the message would have woken the listener
                pace.judge(woken)
                if woken is Woken.TIMEOUT:
                    self._look_for_sockets(self._listener)
            nap = pace.next(moved, busy, woken)
            woken = self._listen(self._listener, nap.seconds) if nap.listening and self._listener else None
            self._take_orders(0.0 if nap.listening else nap.seconds)

    def _look_for_deaths(self) -> None:
        """Ask MPI for dead ranks, but at most every 10 ms. While a known loss waits to be announced, ask at every call."""
        if self.traffic.dying or time.monotonic() > self._next_deaths:
            self.traffic.look_for_deaths()
            self._next_deaths = time.monotonic() + _DEATHS_SECONDS

    def _listen(self, listener: Listener, seconds: float) -> Woken:
        self._listening = True  # from now on an order wakes the listener; earlier orders are in the queue
        try:
            return listener.wait(seconds) if self._orders.empty() else Woken.ORDER
        finally:
            self._listening = False

    def _look_for_sockets(self, listener: Listener) -> None:
        """Register new sockets with the listener, at most every 50 ms. Called after a message that did not wake the listener."""
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            listener.look()

    def _take_orders(self, seconds: float) -> None:
        """Carry out all queued orders. If the queue is empty, first wait for at most `seconds` for an order."""
        if not seconds and self._orders.empty():
            return
        try:
            order = self._orders.get(timeout=seconds) if seconds else self._orders.get_nowait()
            while True:
                if isinstance(order, Message):
                    self.traffic.put(order)
                elif isinstance(order, Call):
                    order.function(self._mpi)
                order = self._orders.get_nowait()
        except queue.Empty:
            pass

    def _may_leave(self) -> bool:
        if self._closing_deadline is None:
            return False
        leave = self.traffic.take_leave()
        self.agreed = leave and len(self.traffic.alive) == self.traffic.size
        return leave or time.monotonic() > self._closing_deadline

    def _sweep(self) -> None:
        """Finish, with an error, the sends that were ordered too late."""
        while True:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                return
            if isinstance(order, Message):
                order.send.finish(self.error or TransportError("the transport has closed"))


def _rank() -> int:
    """Return this process's rank from the launcher, since MPI is not initialised yet; 0 if the launcher gives no rank."""
    found = place()
    return found.rank if found is not None else 0


def _local_rank(mpi: Any) -> int:
    """Return this process's number among the ranks of its host, from the launcher if it gives one, otherwise from MPI.

    All ranks must take part in the call of MPI. They do, because a launcher gives the number either to all ranks or to no
    rank.
    """
    if (said := local_rank()) is not None:
        return said
    host = mpi.COMM_WORLD.Split_type(mpi.COMM_TYPE_SHARED)
    try:
        return int(host.Get_rank())
    finally:
        host.Free()


def _nobody_listens(rank: int) -> bool:
    return False
