"""Interface of a network: messages between ranks, and a deadline on every wait.

A transport moves opaque byte buffers. It knows nothing of frames, gradients or training.
Rank 0 is the hub of a star; a transport must carry 0 <-> r for every r and may carry more.
"""

from __future__ import annotations

import queue
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from psnode.errors import DeadlineExceededError
from psnode.transport.mailbox import Mailbox

Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview | Bytes


class Arrival(NamedTuple):
    """One message. `data` is exactly as long as the sent one and starts at an address divisible by 16.

    Call `release()` when nothing refers to `data` any more: the transport then reuses the memory.
    """

    source: int
    tag: int
    data: Bytes
    release: Callable[[], None]


class PeerLost(NamedTuple):
    """An event in the inbox: rank `rank` will not send any more."""

    rank: int
    reason: str


class Pending(ABC):
    """A send under way. The buffers handed to `send` belong to the transport until `done`."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once the buffers may be reused, be it by success or by the peer's loss."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Block until done; DeadlineExceededError after `seconds`."""


class Inbox:
    """Queue that one thread waits on: arrivals, losses of peers, and events posted by its own helper threads.

    Events come out in the order in which they were put in. An exception among them is to be raised: the
    transport or a helper thread has failed.
    """

    def __init__(self) -> None:
        self._events: Mailbox[object] = Mailbox()
        self._first: deque[object] = deque()

    def post(self, event: object) -> None:
        """Put an event in; any thread may call it."""
        self._events.put(event)

    def put_back(self, events: Iterable[object]) -> None:
        """Return events that were taken out, in the order in which they came; the thread that waits may call it."""
        self._first.extendleft(reversed(list(events)))

    def poll(self) -> object | None:
        """The next event, or None if there is none now."""
        if self._first:
            return self._first.popleft()
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def wait(self, seconds: float) -> object:
        """The next event; DeadlineExceededError if there is none within `seconds`."""
        if self._first:
            return self._first.popleft()
        try:
            return self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise DeadlineExceededError(f"nothing arrived within {seconds:g} s") from None


class Transport(ABC):
    """Point-to-point messages among `size` ranks, of which this end is `rank`, and `local_rank` among those of its host."""

    rank: int
    size: int
    local_rank: int
    inbox: Inbox

    @abstractmethod
    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        """Queue one message made of `buffers` end to end and return at once.

        Messages between two ranks arrive in the order in which they were sent. `tag` is 0..4095.
        A single contiguous buffer is sent without a copy. Any thread may call it.
        Sending to a lost rank is no error: the message is dropped and the Pending is done.
        """

    @abstractmethod
    def alive(self) -> frozenset[int]:
        """The ranks, this one included, that are not known to be lost."""

    @abstractmethod
    def close(self, seconds: float = 5.0) -> None:
        """Finish the sends under way, for at most `seconds`, and leave. Idempotent."""

    def poll(self) -> Arrival | None:
        """The next message if there is one. For callers that post no events of their own."""
        event = self.inbox.poll()
        while event is not None and not isinstance(event, Arrival):
            _raise_if_error(event)
            event = self.inbox.poll()
        return event

    def wait(self, seconds: float) -> Arrival:
        """The next message; DeadlineExceededError after `seconds`. For callers that post no events of their own."""
        end = time.monotonic() + seconds
        while True:
            event = self.inbox.wait(end - time.monotonic())
            if isinstance(event, Arrival):
                return event
            _raise_if_error(event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _raise_if_error(event: object) -> None:
    if isinstance(event, Exception):
        raise event
