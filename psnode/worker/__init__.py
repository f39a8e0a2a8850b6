"""The worker: every rank but 0."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from psnode.config import Config
from psnode.errors import PsnodeError, TransportError
from psnode.link import Link, RemoteFailureError
from psnode.task import Task
from psnode.transport.barrier import send_hello
from psnode.transport.base import Transport
from psnode.wire import Frame, Kind
from psnode.worker.startup import join


def work(
    transport: Transport,
    config: Config,
    make_task: Callable[[Config], Task],
    hello: bytes,
    turn: AbstractContextManager[Any],
) -> int:
    """Take part in a job as a worker; returns the exit code, 0 whenever the master knows how the job ended.

    Of `config` only the deadlines are used, until the master's has come. What goes wrong here is reported to the master,
    which speaks for all. Raises TransportError when the master is gone.
    """
    link = Link(transport)
    send_hello(transport, hello)
    try:
        worker = join(link, 5 * config.pause_deadline + config.start_deadline, make_task, turn)
        try:
            worker.train()
        finally:
            worker.close()
    except RemoteFailureError:
        pass
    except TransportError:
        raise
    except Exception as error:
        link.fail(0, error)
        _wait_for_end(link, config.pause_deadline)
        if not isinstance(error, PsnodeError) and config.debug:
            raise
    return 0


def _wait_for_end(link: Link, seconds: float) -> None:
    """Stay until the master has taken note, so that its error message comes before any sign of our end."""
    try:
        while True:
            event = link.next(seconds)
            if isinstance(event, Frame) and event.kind is Kind.END:
                return
    except PsnodeError:
        return
