"""The barrier at the start of a job: every worker reports to rank 0, which names the missing workers."""

from __future__ import annotations

import time

from psnode.errors import DeadlineExceededError, MissingRanksError
from psnode.transport.base import MAX_TAG, Arrival, PeerLost, Pending, Transport

HELLO_TAG = MAX_TAG


def send_hello(transport: Transport, hello: bytes) -> Pending:
    """Report to rank 0 as a worker. The next message from rank 0 means that all ranks have reported."""
    return transport.send(0, HELLO_TAG, [hello])


def gather_hello(transport: Transport, hello: bytes, seconds: float) -> dict[int, bytes]:
    """Wait, as rank 0, for the reports of all ranks. Return the reports by rank, including `hello`, the report of rank 0.

    Raises MissingRanksError after `seconds`, with the names of all ranks that have not reported, or immediately if a rank is
    lost before it has reported. Raises the transport's own error if the transport fails.
    """
    inbox, end = transport.inbox(HELLO_TAG), time.monotonic() + seconds
    heard = {transport.rank: hello}
    while len(heard) < transport.size:
        try:
            event = inbox.wait(end - time.monotonic())
        except DeadlineExceededError:
            raise MissingRanksError(set(range(transport.size)) - set(heard), seconds) from None
        if isinstance(event, Arrival):
            heard[event.source] = event.data.tobytes()
            event.release()
        elif isinstance(event, PeerLost) and event.rank not in heard:
            raise MissingRanksError([event.rank], seconds)
        elif isinstance(event, Exception):
            raise event
    return dict(sorted(heard.items()))
