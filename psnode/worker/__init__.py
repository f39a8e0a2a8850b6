"""The worker: every rank but 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from psnode.config import Config
from psnode.errors import PsnodeError, TransportError
from psnode.exchange.routes import MASTER
from psnode.protocol.channel import FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.wire import Frame, Kind
from psnode.task import Task
from psnode.tasks.device import device_errors
from psnode.transport.barrier import send_hello
from psnode.transport.base import Transport
from psnode.worker.handshake import join


def work(
    transport: Transport,
    config: Config,
    make_task: Callable[[Config], Task],
    hello: bytes,
    torch_lock: AbstractContextManager[Any],
) -> int:
    """Take part in a job as a worker; returns the exit code, 0 whenever the master knows how the job ended.

    Of `config` only the deadlines are used, until the master's has come. Errors here are reported to the master,
    which speaks for all and may go on with the others. Raises TransportError when the master is gone.
    """
    link = FrameChannel(transport, watched={0})
    send_hello(transport, hello)
    if not _takes_part(link, config, make_task, torch_lock):
        wait_for_end(link, config.pause_deadline)
    return 0


def _takes_part(
    link: FrameChannel, config: Config, make_task: Callable[[Config], Task], torch_lock: AbstractContextManager[Any]
) -> bool:
    """Take all steps; False if something went wrong here: the master has been told then, and nothing of it is left in memory."""
    try:
        with _reported(link, config.debug):
            worker = join(link, 5 * config.pause_deadline + config.start_deadline, make_task, torch_lock)
        try:
            with _reported(link, config.debug):  # before threads are ended, which may take long
                worker.train()
        finally:
            worker.close()
    except RemoteFailureError:
        return True
    except TransportError:
        raise
    except (Exception, SystemExit):
        return False
    return True


@contextmanager
def _reported(link: FrameChannel, debug: bool) -> Iterator[None]:
    """Tell the master of exceptions, the task's included; a program that leaves on one rank is an exception like others."""
    try:
        with device_errors("--batch-size, with more --batches-per-step, take --precision bf16, or put fewer workers there"):
            yield
    except (RemoteFailureError, TransportError):
        raise
    except (Exception, SystemExit) as error:
        link.fail(0, error, debug=debug)
        raise


def wait_for_end(link: FrameChannel, seconds: float) -> None:
    """Stay until the job has ended: a process that leaves alone would end it under mpirun, which knows nothing of the others."""
    try:
        while True:
            event = link.next(seconds)
            if isinstance(event, StopRequest):
                link.send(MASTER, Kind.STOP_REQUEST, event.reason.encode())
            elif isinstance(event, Frame):
                event.release()
                if event.kind is Kind.END:
                    return
    except PsnodeError:
        return
