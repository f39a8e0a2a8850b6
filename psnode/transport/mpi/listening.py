"""Sleep until a message comes. MPI has no call for this: a thread that waits in MPI occupies a core.

The kernel reports bytes that arrive on MPI's TCP sockets. Ranks of one host exchange messages through shared memory, so they
wake each other with datagrams to a socket called the doorbell. Both signals only end a sleep early: a thread that is not woken
still polls (psnode.transport.mpi.pace).
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import Iterator
from enum import Enum

_TCP_SOCKETS = "/proc/self/fd"


class Woken(Enum):
    """The reason why a sleep ended."""

    TIMEOUT = 0
    ORDER = 1  # another thread of this process called `wake`
    SOUND = 2  # a message may have arrived


def can_listen() -> bool:
    """Return True if a Listener works on this system (Linux)."""
    return hasattr(select, "epoll") and hasattr(os, "eventfd")


class Listener:
    """Wakes the thread of one rank when bytes arrive.

    `job`: the name of this job, unique on the host; without a name (None), only TCP sockets wake the thread.
    """

    def __init__(self, job: str | None, rank: int) -> None:
        self._job = job
        self._epoll = select.epoll()
        self._orders = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._orders, select.EPOLLIN)
        self._doorbell = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        self._silent = set[int]()
        if job is not None:
            with contextlib.suppress(OSError):
                self._doorbell.bind(_address(job, rank))
                self._epoll.register(self._doorbell, select.EPOLLIN)

    def wait(self, seconds: float) -> Woken:
        """Sleep for at most `seconds`, rounded up to milliseconds, and return the reason for waking."""
        events = dict(self._epoll.poll(seconds))
        sound = len(events) - (self._orders in events)
        if self._orders in events:
            os.eventfd_read(self._orders)
        if self._doorbell.fileno() in events:
            with contextlib.suppress(BlockingIOError):
                while True:
                    self._doorbell.recv(1)
        return Woken.SOUND if sound else Woken.ORDER if events else Woken.TIMEOUT

    def wake(self) -> None:
        """End the present sleep, or the next sleep if no thread sleeps now. Any thread may call this."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._orders, 1)

    def knock(self, rank: int) -> bool:
        """Send a datagram that wakes `rank`. Return False if `rank` is on another host or does not listen."""
        if self._job is None or rank in self._silent:
            return False
        try:
            self._doorbell.sendto(b"", _address(self._job, rank))
        except BlockingIOError:
            pass  # other ranks have already knocked
        except OSError:
            self._silent.add(rank)  # it is on another host, or does not listen
            return False
        return True

    def look(self) -> None:
        """Register the sockets that MPI has opened since the last call.

        MPI opens them when two ranks exchange their first message.
        """
        for number in stream_sockets():
            # Edge-triggered, so that bytes that MPI does not read, such as another library's, wake this thread only once.
            with contextlib.suppress(OSError):
                self._epoll.register(number, select.EPOLLIN | select.EPOLLET)

    def close(self) -> None:
        """Stop listening."""
        self._epoll.close()
        self._doorbell.close()
        os.close(self._orders)


def _address(job: str, rank: int) -> str:
    """Return the address of a rank's doorbell in Linux's abstract namespace, which creates no file."""
    return f"\0psnode/{os.getuid()}/{job}/{rank}"


def stream_sockets() -> Iterator[int]:
    """Yield the descriptors of this process's stream sockets over IP; yield nothing on a system without /proc."""
    entries = list[str]()
    with contextlib.suppress(OSError):
        entries = os.listdir(_TCP_SOCKETS)
    for entry in entries:
        with contextlib.suppress(OSError):
            if os.readlink(f"{_TCP_SOCKETS}/{entry}").startswith("socket:"):
                probe = socket.socket(fileno=int(entry))
                family, kind = probe.family, probe.type
                probe.detach()
                if family in (socket.AF_INET, socket.AF_INET6) and kind == socket.SOCK_STREAM:
                    yield int(entry)
