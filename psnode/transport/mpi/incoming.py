"""Messages in transit from one rank. Only a few pieces are received simultaneously. Messages are delivered whole and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from psnode.transport.base import Bytes
from psnode.transport.mpi.fragments import TOTAL_BYTES, Fragment, read_total, split_tag
from psnode.transport.mpi.requests import Then
from psnode.transport.pool import Pool, PooledBuffer

Start = Callable[[Any, Bytes, Then], None]
Deliver = Callable[[int, Fragment, PooledBuffer], None]
Refuse = Callable[[str], None]


class _Matched(NamedTuple):
    handle: Any  # MPI's matched message
    mpi_tag: int
    nbytes: int


class _IncomingMessage:
    """A message in transit. `begun`: the bytes whose receive has begun; `flying`: the number of receives in progress."""

    def __init__(self, tag: int, part: Fragment, block: PooledBuffer) -> None:
        self.tag, self.part, self.block = tag, part, block
        self.begun = self.flying = 0

    @property
    def complete(self) -> bool:
        return self.begun == self.block.data.size and self.flying == 0


class Incoming:
    """Receives the messages of one rank.

    `start(handle, buffer, then)` begins a receive, and `deliver(tag, part, block)` takes each complete message.
    `refuse(reason)` is called once if parts do not form a message or a receive fails; after this call nothing is delivered.
    `window`: returns, when called, the largest number of simultaneous receives. Without this limit, several large messages
    would share the link: all of them would need memory, and the first would be complete only late.
    """

    def __init__(self, pool: Pool, start: Start, deliver: Deliver, refuse: Refuse, window: Callable[[], int]) -> None:
        self._window = window
        self._pool, self._start, self._deliver, self._refuse = pool, start, deliver, refuse
        self._matched: deque[_Matched] = deque()
        self._messages: deque[_IncomingMessage] = deque()
        self._flying = 0
        self._announced = False  # True while a TOTAL is in transit; its pieces must wait for it
        self._broken = False

    @property
    def busy(self) -> bool:
        """True while a receive is in progress or queued."""
        return bool(self._matched) or self._flying > 0

    def match(self, handle: Any, mpi_tag: int, nbytes: int) -> None:
        """Queue an MPI message that a probe has matched, and begin to receive it if the window allows this."""
        if not self._broken:
            self._matched.append(_Matched(handle, mpi_tag, nbytes))
            self._advance()

    def _advance(self) -> None:
        while self._matched and not self._announced and self._flying < self._window():
            handle, mpi_tag, nbytes = self._matched.popleft()
            tag, part = split_tag(mpi_tag)
            if part is Fragment.TOTAL and nbytes == TOTAL_BYTES:
                self._announced = True
                total = np.empty(nbytes, np.uint8)
                self._flying += 1
                self._start(handle, total, partial(self._total_came, tag, total))
            elif part is Fragment.PIECE:
                message = self._messages[-1] if self._messages else None
                if message is None or message.part is not part or message.begun + nbytes > message.block.data.size:
                    self._break(f"it sent a piece of {nbytes} bytes that belongs to no message")
                else:
                    self._begin(handle, message, nbytes)
            elif part is Fragment.TOTAL:
                self._break(f"it announced a length in {nbytes} bytes instead of {TOTAL_BYTES}")
            elif self._expect(tag, part, nbytes):
                self._begin(handle, self._messages[-1], nbytes)

    def _expect(self, tag: int, part: Fragment, nbytes: int) -> bool:
        try:
            self._messages.append(_IncomingMessage(tag, part, self._pool.take(nbytes)))
        except (MemoryError, ValueError):
            self._break(f"it sent a message of {nbytes} bytes, for which there is no memory")
            return False
        return True

    def _begin(self, handle: Any, message: _IncomingMessage, nbytes: int) -> None:
        view = message.block.data[message.begun : message.begun + nbytes]
        message.begun += nbytes
        message.flying += 1
        self._flying += 1
        self._start(handle, view, partial(self._came, message))

    def _total_came(self, tag: int, total: Bytes, error: int) -> None:
        self._flying -= 1
        self._announced = False
        if error:
            self._break("a receive from it failed")
        else:
            self._expect(tag, Fragment.PIECE, read_total(total))
        self._advance()

    def _came(self, message: _IncomingMessage, error: int) -> None:
        self._flying -= 1
        message.flying -= 1
        if error:
            self._break("a receive from it failed")
        while not self._broken and self._messages and self._messages[0].complete:
            first = self._messages.popleft()
            self._deliver(first.tag, first.part, first.block)
        self._advance()

    def _break(self, reason: str) -> None:
        self._matched.clear()
        if not self._broken:
            self._broken = True
            self._refuse(reason)
