"""Round trip of this process's connections, as the kernel measures it, and the number of pieces in transit that it requires."""

from __future__ import annotations

import contextlib
import math
import socket
import struct
import time
from collections.abc import Callable, Iterable

from psnode.transport.mpi.listening import stream_sockets
from psnode.transport.mpi.piece_size import SECONDS

LEAST_PIECES = 2  # so that one piece is in progress while another ends
MOST_PIECES = 32
_EVERY = 1.0  # seconds between two queries of the kernel
_MIN_RTT = struct.Struct("=148xI")  # struct tcp_info of Linux, up to tcpi_min_rtt, in microseconds
_NEVER = 0xFFFFFFFF  # the kernel has not measured a round trip yet


def longest_round_trip(sockets: Iterable[int]) -> float:
    """Return the longest round trip of the TCP connections with the descriptors `sockets`, in seconds.

    For each connection the shortest round trip that the kernel has measured counts, since it contains no time in a queue.
    Returns 0 if the kernel gives no round trip.
    """
    found = [0]
    for number in sockets:
        with contextlib.suppress(OSError, AttributeError):  # the socket is closed now or is not TCP, or the system is not Linux
            probe = socket.socket(fileno=number)
            try:
                info = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _MIN_RTT.size)
            finally:
                probe.detach()
            found += [_MIN_RTT.unpack(info)[0]] if len(info) == _MIN_RTT.size else []
    return max(each for each in found if each != _NEVER) / 1e6


class Window:
    """Returns, when called, the number of pieces from one rank that may be received simultaneously.

    If the round trip is short, two pieces keep a link busy, and with more pieces in transit TCP would divide links unevenly
    (`piece_size`). A piece is first announced and then requested. So for a long round trip, the number grows by the pieces
    that a link carries in two round trips. `look`: returns the longest round trip in seconds. `clock`: returns seconds.
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
