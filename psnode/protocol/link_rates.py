"""Rates of the links between the master and its workers, measured before the first step with frames of random bytes."""

from __future__ import annotations

import math
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple, Self

from psnode.errors import WireError
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Frame, Kind

_SIZE = struct.Struct("<Q")
_SMALLEST, _LARGEST = 1 << 14, 1 << 23  # bytes of a frame
_LONG = 0.25  # a frame that takes this number of seconds is the largest
_TRIPS = 9


class LinkRates(NamedTuple):
    """Rates of the master's link while the measured workers use it simultaneously.

    `round_trip`: seconds that a small message takes to these workers and back. `up`: bytes per second from the workers to the
    master. `down`: bytes per second from the master to the workers.
    """

    round_trip: float
    up: float
    down: float

    @classmethod
    def recorded(cls, fields: Mapping[str, Any]) -> Self:
        """Return the rates that `_asdict` recorded. Raises ValueError, TypeError or KeyError if `fields` are not valid rates."""
        found = cls(float(fields["round_trip"]), float(fields["up"]), float(fields["down"]))
        if not all(map(math.isfinite, found)) or found.round_trip < 0 or min(found.up, found.down) <= 0:
            raise ValueError(f"no link carries {found.up} bytes per second up and {found.down} down")
        return found


def measure_links(link: FrameChannel, workers: Sequence[int], patience: float) -> LinkRates:
    """Measure, on the master, the links of `workers`, which wait for CONFIG or for PLAN.

    First all workers send simultaneously, then all receive simultaneously. The size of the frames doubles until a frame takes
    a quarter of a second or has 8 MiB. The rate is the difference between the last two sizes, divided by the difference of
    their times. So the rate does not depend on the time of a small message, nor on the bytes that a link carries immediately
    after a pause. `patience`: the longest wait for an answer, in seconds.
    """

    def seconds(up: int, down: int) -> float:
        body = _SIZE.pack(up) + _noise(down)
        begin = time.perf_counter()
        link.send(workers, Kind.PROBE, body)
        for _ in workers:
            link.expect(Kind.PROBE, patience).release()
        return time.perf_counter() - begin

    trip = median(seconds(0, 0) for _ in range(_TRIPS))
    up, down = _rate(lambda size: seconds(size, 0), trip), _rate(lambda size: seconds(0, size), trip)
    return LinkRates(trip, len(workers) * up, len(workers) * down)


def _rate(seconds: Callable[[int], float], trip: float) -> float:
    """Return the rate of one worker in bytes per second.

    `seconds(size)` returns the time in which each worker sends, or receives, a frame of `size` bytes. `trip`: the time of an
    empty frame. The last two sizes are timed twice, and the shorter time counts, since a pause of the network only makes a
    time longer.
    """
    size, now = _SMALLEST, seconds(_SMALLEST)
    while now - trip < _LONG and size < _LARGEST:
        size *= 2
        now = seconds(size)
    now, before = min(now, seconds(size)), min(seconds(size // 2), seconds(size // 2))
    return size / 2 / (now - before) if now > before else size / now


def answer(link: FrameChannel, frame: Frame) -> None:
    """Answer, on a worker, a PROBE frame of `measure_links`. Raises WireError if the frame asks for too many bytes."""
    body = bytes(frame.body[: _SIZE.size])
    frame.release()
    size = _SIZE.unpack(body)[0] if len(body) == _SIZE.size else _LARGEST + 1
    if size > _LARGEST:
        raise WireError("a PROBE frame asks for more bytes than it may", frame.sender)
    link.send(frame.sender, Kind.PROBE, _noise(size))


def _noise(size: int) -> bytes:
    """Return `size` random bytes. A block of at most 16 KiB is repeated."""
    block = os.urandom(min(size, _SMALLEST))
    return (block * -(-size // max(len(block), 1)))[:size]
