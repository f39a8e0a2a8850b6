"""The round trip of this process's connections, as the kernel knows it, and the pieces in transit that it asks for."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Callable, Iterable

from psnode.transport.mpi.listening import stream_sockets
from psnode.transport.mpi.piece_size import SECONDS

LEAST_PIECES = 2  # so that one is in progress while another ends
MOST_PIECES = 32
_EVERY = 1.0  # seconds between two looks
_MIN_RTT = struct.Struct("=148xI")  # struct tcp_info of Linux, up to tcpi_min_rtt, in microseconds
_NEVER = 0xFFFFFFFF  # nothing has been measured yet


def longest_round_trip(sockets: Iterable[int]) -> float:
    """Return the longest of the least round trips, in seconds, of the TCP connections with the descriptors `sockets`.

    The least round trip of a connection has no part of a queue. Returns 0 if the kernel tells none.
    """
    found = [0]
    for number in sockets:
        with contextlib.suppress(OSError, AttributeError):  # closed meanwhile, no TCP, or another system
            probe = socket.socket(fileno=number)
            try:
                info = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
            finally:
                probe.detach()
            found += [_MIN_RTT.unpack(info)[0]] if len(info) == _MIN_RTT.size else []
    return max(each for each in found if each != _NEVER) / 1e6


class Window:
    """Returns, when called, the number of pieces from one rank that are received at a time.

    Two keep a link busy whose round trip is short, and with more in transit TCP would share links unevenly (`piece_size`). Over a
    long way the pieces of two round trips are in transit, as every piece is first announced, then asked for. `look`: returns
    the longest round trip in seconds. `clock`: returns seconds.
    """

    def __init__(
        self,
        look: Callable[[], float] = lambda: longest_round_trip(stream_sockets()),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._clock = look, clock
        self._pieces = LEAST_PIECES
        self._next = -math.inf

    def __call__(self) -> int:
        if (now := self._clock()) >= self._next:
            self._next = now + _EVERY
            self._pieces = min(MOST_PIECES, LEAST_PIECES + math.floor(2 * self._look() / SECONDS))
        return self._pieces
