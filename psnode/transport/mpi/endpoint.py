"""One rank's access to the MPI transport. This is the only module that imports mpi4py.

Only one thread calls MPI, from MPI_Init_thread to MPI_Finalize (psnode.transport.mpi.thread). Threads that call `send`,
`close`, `call` or `abort` do not call MPI, but queue an order for this thread.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar

from psnode.errors import ConfigurationError, DeadlineExceededError, MissingRanksError, TransportError, installing
from psnode.transport.base import Arrival, Buffer, Inboxes, Pending, Transport
from psnode.transport.mpi.fragments import LARGEST_PIECE_BYTES
from psnode.transport.mpi.messages_in_transit import Message
from psnode.transport.mpi.thread import Call, MpiThread
from psnode.transport.pool import Pool
from psnode.transport.sending import Send, check_address, lay_out

T = TypeVar("T")

DEFAULT_POOL_BYTES = 256 << 20
_ABORT_SECONDS = 2.0
_THREAD = "psnode-mpi"


def start(*, seconds: float = 60.0, piece_bytes: int = LARGEST_PIECE_BYTES, pool_bytes: int = DEFAULT_POOL_BYTES) -> MpiTransport:
    """Initialise MPI and start the thread that calls it.

    Args:
        seconds: time limit of MPI_Init, which returns only when every rank has called it.
        piece_bytes: the largest size of the pieces in which messages are sent, at most 1 GiB (psnode.transport.mpi.piece_size).
        pool_bytes: maximum memory of released messages that is kept for later messages.

    Raises:
        MissingRanksError, DeadlineExceededError: some rank has not called MPI_Init in time. MissingRanksError names the missing
            ranks; they are known only if all ranks are on this host. Leave with `os._exit`, since MPI_Init cannot be interrupted.
        TransportError: MPI cannot be initialised or was initialised without thread support.
        ConfigurationError: mpi4py is not installed, an argument is out of bounds, this process already takes part in a job, or
            MPI was finalised in this process and cannot be initialised again.
    """
    if not 1 <= piece_bytes <= LARGEST_PIECE_BYTES:
        raise ConfigurationError(f"piece_bytes is {piece_bytes}: choose 1..{LARGEST_PIECE_BYTES}")
    inboxes, pool, mpi = Inboxes(), Pool(pool_bytes), _load()
    if any(thread.name == _THREAD for thread in threading.enumerate()):
        raise ConfigurationError(
            "this process takes part in a job already: a program has one session, or one psnode.run, at a time"
        )
    if mpi.Is_finalized():
        raise ConfigurationError(
            "MPI has ended in this process and cannot begin again: a program has one session, or one psnode.run, unless it "
            "initialises MPI itself (from mpi4py import MPI)"
        )
    body = MpiThread(mpi, inboxes, pool, piece_bytes)
    thread = threading.Thread(target=body.run, name=_THREAD, daemon=True)
    thread.start()
    if not body.started.wait(seconds):
        if absent := body.absent():
            raise MissingRanksError(absent, seconds)
        raise DeadlineExceededError(
            f"MPI_Init did not return within {seconds:g} s: some rank has not started; raise --start-deadline if it is only slow"
        )
    if body.error is not None:
        raise TransportError(f"MPI could not be started: {body.error}") from body.error
    return MpiTransport(body, inboxes, pool)


def _load() -> Any:
    """Return the module mpi4py.MPI, configured to leave initialisation and finalisation to psnode."""
    try:
        import mpi4py
    except ImportError as error:
        raise ConfigurationError(f"mpi4py is not installed ({error}): {installing('mpi')}") from error
    mpi4py.rc.initialize = False
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigurationError(f"mpi4py finds no MPI library ({error}): {installing('mpi')}, or load your MPI") from error
    return MPI


class MpiTransport(Transport):
    """One rank's access to the MPI transport. After `close`, `clean` is True if MPI was finalised together with all other ranks.

    If `clean` is False, some rank has died, is stuck or has not closed its transport. In this case flush files and leave with
    `os._exit`, since the exit handlers of MPI libraries wait for the other ranks.
    """

    def __init__(self, body: MpiThread, inboxes: Inboxes, pool: Pool) -> None:
        self.rank, self.size, self.inboxes = body.traffic.rank, body.traffic.size, inboxes
        self.local_rank = body.local_rank
        self.clean = False
        self._body, self._pool = body, pool
        self._closed = False

    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        check_address(rank, tag, self.size)
        self._check_open()
        send = Send()
        if rank == self.rank:
            block = lay_out(buffers, self._pool, copy=True)
            self.inboxes.deliver(Arrival(rank, tag, block.data, block.release))
            send.finish()
        else:
            self._body.order(Message(rank, tag, lay_out(buffers, self._pool, copy=False), send))
        return send

    def alive(self) -> frozenset[int]:
        return self._body.traffic.alive

    def close(self, seconds: float = 5.0) -> None:
        if self._closed:
            return
        self._closed = True
        end = time.monotonic() + seconds
        self._body.close(seconds)
        # Wait one second more than the thread's own deadline, since MPI_Finalize follows.
        self.clean = self._body.ended.wait(end + 1.0 - time.monotonic()) and self._body.agreed

    def abort(self, code: int) -> NoReturn:
        """End every process of the job immediately with exit code `code`, after an error that would leave other ranks waiting."""
        if not self._body.ended.is_set():
            self._body.order(Call(lambda mpi: mpi.COMM_WORLD.Abort(code)))
            self._body.ended.wait(_ABORT_SECONDS)
        os._exit(code)

    def call(self, function: Callable[[Any], T], seconds: float) -> T:
        """Run `function(mpi4py.MPI)` in the MPI thread and return its value. This method is for measurements.

        No messages move while the function runs. Raises the errors of `function`, and DeadlineExceededError after `seconds`.
        """
        self._check_open()
        done = threading.Event()
        outcome: list[T] = []
        errors: list[Exception] = []

        def run(mpi: Any) -> None:
            try:
                outcome.append(function(mpi))
            except Exception as error:
                errors.append(error)
            done.set()

        self._body.order(Call(run))
        if not done.wait(seconds):
            raise DeadlineExceededError(f"a call in the MPI thread did not end within {seconds:g} s")
        if errors:
            raise errors[0]
        return outcome[0]

    def _check_open(self) -> None:
        if self._body.error is not None:
            raise TransportError(f"MPI failed on rank {self.rank}: {self._body.error}") from self._body.error
        if self._closed:
            raise TransportError(f"rank {self.rank} has closed its transport: nothing more can be sent")
