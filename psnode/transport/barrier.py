"""The start of a job: every worker reports to rank 0, which names the missing ones."""

from __future__ import annotations

import time

from psnode.errors import DeadlineExceededError, MissingRanksError
from psnode.transport.base import MAX_TAG, Arrival, PeerLost, Pending, Transport

HELLO_TAG = MAX_TAG


def send_hello(transport: Transport, hello: bytes) -> Pending:
    """A worker's part: report to rank 0. Rank 0's next message means that all ranks have reported."""
    return transport.send(0, HELLO_TAG, [hello])


def gather_hello(transport: Transport, hello: bytes, seconds: float) -> dict[int, bytes]:
    """Rank 0's part: returns the words of every rank, rank 0's own `hello` included.

    Raises MissingRanksError naming all ranks that have not reported after `seconds`, or at once naming lost ranks, and the
    transport's own error if it fails.
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
