"""The interface of a transport: messages between ranks, with a deadline on every wait.

A transport moves byte buffers from any rank to any other rank, and knows nothing about frames, gradients or training. Each
role of a rank has its own inbox, and a message's tag selects the role that receives the message.
"""

from __future__ import annotations

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from psnode.errors import DeadlineExceededError, TransportError
from psnode.transport.mailbox import Mailbox

Bytes = npt.NDArray[np.uint8]
Buffer = bytes | bytearray | memoryview | Bytes
MAX_TAG = 4095


class Arrival(NamedTuple):
    """A received message. `data` is exactly as long as the sent message and starts at an address divisible by 16.

    Call `release()` when `data` is no longer used. The transport then reuses the memory.
    """

    source: int
    tag: int
    data: Bytes
    release: Callable[[], None]


class PeerLost(NamedTuple):
    """The event, posted to every inbox, that rank `rank` is lost and will send nothing more."""

    rank: int
    reason: str


class Pending(ABC):
    """A send in progress. The buffers passed to `send` belong to the transport until `done` is True."""

    @property
    @abstractmethod
    def done(self) -> bool:
        """True once the buffers may be reused, after success or after the peer's loss."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Block until the send is done. Raises DeadlineExceededError after `seconds`."""


class Inbox:
    """A queue that one thread reads: arrivals, losses of peers, and events posted by the reading thread's helper threads.

    Events are returned in the order in which they were posted. An exception among the events means that the transport or a
    helper thread has failed; the reader should raise it.
    """

    def __init__(self) -> None:
        self._events: Mailbox[object] = Mailbox()
        self._first: deque[object] = deque()

    def post(self, event: object) -> None:
        """Append an event; any thread may call this."""
        self._events.put(event)

    def put_back(self, events: Iterable[object]) -> None:
        """Put events, in the order in which they came, back at the front of the queue. Only the reading thread may call this."""
        self._first.extendleft(reversed(list(events)))

    def poll(self) -> object | None:
        """Return the next event, or None if the queue is empty now."""
        if self._first:
            return self._first.popleft()
        try:
            return self._events.get_nowait()
        except queue.Empty:
            return None

    def wait(self, seconds: float) -> object:
        """Return the next event. Raises DeadlineExceededError if no event comes within `seconds`."""
        if self._first:
            return self._first.popleft()
        try:
            return self._events.get(timeout=max(0.0, seconds))
        except queue.Empty:
            raise DeadlineExceededError(f"nothing arrived within {seconds:g} s") from None


class Inboxes:
    """The inboxes of one rank, by tag. An inbox is created when it is requested or when its first message comes.

    Messages go to the inbox of their tag. Losses of peers and a failure of the transport go to all inboxes, including those
    created later.
    """

    def __init__(self) -> None:
        self._inboxes: dict[int, Inbox] = {}
        self._told: list[object] = []
        self._lock = threading.Lock()

    def of(self, tag: int) -> Inbox:
        """Return the inbox of `tag`. Any thread may call this, but only one thread may read the inbox."""
        found = self._inboxes.get(tag)
        return found if found is not None else self._new(tag)

    def _new(self, tag: int) -> Inbox:
        with self._lock:
            if (found := self._inboxes.get(tag)) is None:
                found = Inbox()
                for event in self._told:
                    found.post(event)
                self._inboxes[tag] = found
            return found

    def deliver(self, arrival: Arrival) -> None:
        """Put a message into the inbox of its tag; any thread may call this."""
        self.of(arrival.tag).post(arrival)

    def tell(self, event: object) -> None:
        """Put an event into every inbox, including inboxes created later; any thread may call this."""
        with self._lock:
            self._told.append(event)
            for inbox in self._inboxes.values():
                inbox.post(event)


class Transport(ABC):
    """One rank's access to point-to-point messages among `size` ranks.

    `rank`: the number of this rank. `local_rank`: its number among the ranks on its host. Both count from 0.
    """

    rank: int
    size: int
    local_rank: int
    inboxes: Inboxes

    def inbox(self, tag: int) -> Inbox:
        """Return the inbox of this rank's messages with `tag`, 0..4095. Unread messages wait in it."""
        if not 0 <= tag <= MAX_TAG:
            raise TransportError(f"tag is {tag}: tags are 0..{MAX_TAG}")
        return self.inboxes.of(tag)

    @abstractmethod
    def send(self, rank: int, tag: int, buffers: Sequence[Buffer]) -> Pending:
        """Queue one message that consists of `buffers` end to end, and return immediately. Any thread may call this.

        Messages between two ranks arrive in the order in which they were sent, whatever their tags. Tags are 0..4095. Over MPI,
        a single contiguous buffer is sent to another rank without a copy. Sending to a lost rank is not an error: the message
        is dropped and the Pending is done.
        """

    @abstractmethod
    def alive(self) -> frozenset[int]:
        """Return the ranks, including this rank, that are not known to be lost."""

    @abstractmethod
    def close(self, seconds: float = 5.0) -> None:
        """Wait at most `seconds` for the sends in progress, and leave the group of ranks. Later calls of `close` do nothing."""

    def poll(self, tag: int) -> Arrival | None:
        """Return the next message with `tag`, or None if no message is in the inbox.

        Events other than messages are skipped, so only callers that post no events may use this method.
        """
        inbox = self.inbox(tag)
        event = inbox.poll()
        while event is not None and not isinstance(event, Arrival):
            _raise_if_error(event)
            event = inbox.poll()
        return event

    def wait(self, tag: int, seconds: float) -> Arrival:
        """Return the next message with `tag`. Raises DeadlineExceededError after `seconds`.

        Events other than messages are skipped, so only callers that post no events may use this method.
        """
        inbox, end = self.inbox(tag), time.monotonic() + seconds
        while True:
            event = inbox.wait(end - time.monotonic())
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
