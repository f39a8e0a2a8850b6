"""The worker, which runs on every rank except rank 0 and the ranks of servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from psnode.config import Config
from psnode.errors import PsnodeError, TransportError
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel, RemoteFailureError, StopRequest
from psnode.protocol.wire import Frame, Kind
from psnode.task import Task
from psnode.tasks.device import device_errors
from psnode.transport.barrier import send_hello
from psnode.transport.base import Transport
from psnode.worker.handshake import join_in_any_role


def work(
    transport: Transport,
    config: Config,
    make_task: Callable[[Config], Task],
    hello: bytes,
    torch_lock: AbstractContextManager[Any],
) -> int:
    """Take part in a job as a worker or a server and return the exit code 0. The master's exit code states how the job ended.

    Only the deadlines and `debug` of `config` are used; the other settings come from the master. An error on this rank is
    reported to the master, which may continue with the other workers. Raises TransportError if the master is gone.
    """
    link = FrameChannel(transport, watched={MASTER})
    send_hello(transport, hello)
    if not _takes_part(link, config, make_task, torch_lock):
        wait_for_end(link, config.pause_deadline)
    return 0


def _takes_part(
    link: FrameChannel, config: Config, make_task: Callable[[Config], Task], torch_lock: AbstractContextManager[Any]
) -> bool:
    """Take part in the job until it ends. Return False after an error on this rank, which has been reported to the master.

    When this function returns, the worker and its memory have been released.
    """
    try:
        with _reported(link, config.debug):
            worker = join_in_any_role(link, 5 * config.pause_deadline + config.start_deadline, make_task, torch_lock)
        try:
            with _reported(link, config.debug):  # report errors before the threads end, since their end may take long
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
    """Report exceptions of this rank to the master, including those of the task and sys.exit(), and raise them again."""
    try:
        with device_errors("--batch-size, with more --batches-per-step, take --precision bf16, or put fewer workers there"):
            yield
    except (RemoteFailureError, TransportError):
        raise
    except (Exception, SystemExit) as error:
        link.fail(0, error, debug=debug)
        raise


def wait_for_end(link: FrameChannel, seconds: float) -> None:
    """Block until the job has ended, since mpirun would end the whole job if this process exited before the others.

    `seconds`: the longest allowed silence of the master. Requests to stop are passed on to the master.
    """
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
