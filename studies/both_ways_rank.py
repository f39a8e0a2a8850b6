"""One rank of `python -m studies.both_ways`: frames between rank 0 and all other ranks, in one direction or in both.

    python -m studies.both_ways_rank FRAMES SIZE SENDERS ROUNDS RESULT

Rank 0 orders three exchanges in every round: frames of SIZE bytes from SENDERS other ranks to rank 0, frames from rank 0 to all
other ranks, and both. It sends FRAMES frames to each rank, and gets as many in total. Every rank takes the times at which frames
arrive. The ranks are on one machine, so that their clocks agree. Rank 0 writes the rates of all rounds to the file RESULT.
"""

from __future__ import annotations

import json
import os
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from psnode.config.plain_json import to_json
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Kind, pack
from psnode.transport.mpi import endpoint

SECONDS = 120.0
ORDER = struct.Struct("<QQ")  # the number of frames that a worker sends, and the number that it gets


class Rates(NamedTuple):
    """Bytes per second into and out of rank 0."""

    inward: float
    outward: float


def rates(begin: float, inward: Sequence[Sequence[float]], outward: Sequence[Sequence[float]], size: int) -> Rates:
    """Return the mean rates from the time `begin` until one of the directions is done.

    `inward`, `outward`: for each connection in this direction the times at which its frames of `size` bytes arrived. The bytes
    of a frame count as spread evenly over the time since the frame before it.
    """
    stop = min(max(time for times in way for time in times) for way in (inward, outward) if any(way))

    def rate(way: Sequence[Sequence[float]]) -> float:
        frames = sum(float(np.interp(stop, [begin, *times], range(len(times) + 1))) for times in way)
        return frames * size / (stop - begin)

    return Rates(rate(inward), rate(outward))


def exchanged(link: FrameChannel, inward: Mapping[int, int], outward: int, body: bytes) -> Rates:
    """As rank 0, exchange frames with workers.

    `inward`: the number of frames from each worker; `outward`: the number of frames to each of them. 0: none.
    """
    workers, frame = tuple(inward), pack(Kind.PROBE, body, sender=MASTER, job=link.job)
    for worker, count in inward.items():
        link.send(worker, Kind.PROBE, ORDER.pack(count, outward))
    begin = time.perf_counter()
    pending = [each for _ in range(outward) for each in link.send_frame(workers, frame)]
    came, went = dict[int, list[float]](), dict[int, list[float]]()
    for _ in range(sum(inward.values()) + len(workers)):
        got = link.expect(Kind.PROBE, SECONDS, Kind.STATE)
        if got.kind is Kind.PROBE:
            came.setdefault(got.sender, []).append(time.perf_counter())
        else:
            went[got.sender] = json.loads(bytes(got.body))
        got.release()
    for each in pending:
        each.wait(SECONDS)
    return rates(begin, list(came.values()), list(went.values()), len(body))


def answer(link: FrameChannel, inward: int, outward: int, body: bytes) -> None:
    """As a worker, send `inward` frames, get `outward` frames, and send rank 0 the times at which they came."""
    frame = pack(Kind.PROBE, body, sender=link.rank, job=link.job)
    pending = [each for _ in range(inward) for each in link.send_frame(MASTER, frame)]
    times = []
    for _ in range(outward):
        link.expect(Kind.PROBE, SECONDS).release()
        times.append(time.perf_counter())
    for each in pending:
        each.wait(SECONDS)
    link.send(MASTER, Kind.STATE, to_json(times).encode())


def shared_out(count: int, workers: Sequence[int], senders: int) -> dict[int, int]:
    """Return the number of frames that each worker sends, if the first `senders` of `workers` send `count` frames together."""
    return {rank: (count + place) // senders if place < senders else 0 for place, rank in enumerate(workers)}


def main(frames: int, size: int, senders: int, rounds: int, result: Path) -> None:
    """Run this rank's part of all exchanges."""
    transport = endpoint.start(seconds=SECONDS)
    link, body = FrameChannel(transport), os.urandom(size)
    if transport.rank == MASTER:
        workers, found = range(1, transport.size), []
        sent = shared_out(frames * len(workers), workers, senders)
        exchanged(link, dict.fromkeys(workers, 1), 1, body)  # opens all connections
        for _ in range(rounds):
            inward = exchanged(link, sent, 0, body).inward
            outward = exchanged(link, dict.fromkeys(workers, 0), frames, body).outward
            both = exchanged(link, sent, frames, body)
            found.append({"inward": inward, "outward": outward, "both_in": both.inward, "both_out": both.outward})
        link.send(workers, Kind.END)
        result.write_text(to_json(found))
    else:
        while (frame := link.expect(Kind.PROBE, SECONDS, Kind.END)).kind is Kind.PROBE:
            inward, outward = ORDER.unpack(bytes(frame.body))
            frame.release()
            answer(link, inward, outward, body)
    transport.close()


if __name__ == "__main__":
    numbers = [int(each) for each in sys.argv[1:5]]
    main(numbers[0], numbers[1], numbers[2], numbers[3], Path(sys.argv[5]))
