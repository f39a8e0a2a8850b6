"""Program of the two ranks of `psnode bench transport`: rank 1 sends gradients, rank 0 receives and measures.

python -m psnode.bench.ingest_program RESULT.json GROUPS GROUP_BYTES ROUNDS IDLE_SECONDS
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from psnode.codecs.arrays import Bytes, Floats
from psnode.config.plain_json import to_json
from psnode.protocol import wire
from psnode.transport.base import Arrival
from psnode.transport.mpi import endpoint as mpi

SECONDS = 60.0
_JOB = 1
_TIME_TAG, _FRAME_TAG, _GO_TAG, _PING_TAG = range(4)
_REPEATS = 3  # repetitions of each measurement in one round
_PINGS = 30


class Size(NamedTuple):
    """Traffic of a measurement: `groups` groups of `group_bytes` bytes of float32, repeated in `rounds` rounds."""

    groups: int
    group_bytes: int
    rounds: int

    @property
    def nbytes(self) -> int:
        """Total bytes of all groups."""
        return self.groups * self.group_bytes


def raw_seconds(module: Any, rank: int, buffers: list[Bytes]) -> list[float]:
    """Return the seconds of each transfer of `buffers` by plain nonblocking MPI calls. Runs in the MPI threads of both ranks."""
    world = module.COMM_WORLD.Dup()
    seconds = []
    for _ in range(_REPEATS):
        world.Barrier()
        began = time.perf_counter()
        start = world.Irecv if rank == 0 else world.Isend
        module.Request.Waitall([start([buffer, buffer.size, module.BYTE], 1 - rank, 0) for buffer in buffers])
        seconds.append(time.perf_counter() - began)
    world.Free()
    return seconds


def measure(transport: mpi.MpiTransport, size: Size) -> dict[str, list[float]]:
    """Run rank 0, and return the seconds of each repetition, by the name of the measurement.

    The measurements are raw transfer, ingest, checksum, accumulation, and round trips begun immediately or after a pause.
    """
    found: dict[str, list[float]] = {name: [] for name in ("raw", "ingest", "checksum", "accumulate", "ping", "ping_idle")}
    buffers = [np.ones(size.group_bytes, np.uint8) for _ in range(size.groups)]
    sums = [np.zeros(size.group_bytes // 4, np.float32) for _ in range(size.groups)]
    for _ in range(size.rounds):
        found["raw"] += transport.call(lambda module: raw_seconds(module, 0, buffers), SECONDS)
        found["ingest"] += [_ingest(transport, sums) for _ in range(_REPEATS)]
        found["checksum"] += [_timed(lambda: [crc32c(buffer.data, 0, True) for buffer in buffers]) for _ in range(_REPEATS)]
        found["accumulate"] += [_timed(lambda: _add(buffers, sums)) for _ in range(_REPEATS)]
        found["ping"] += [_timed(lambda: _ping(transport)) for _ in range(_PINGS)]
        for _ in range(_PINGS):
            time.sleep(0.005)
            found["ping_idle"].append(_timed(lambda: _ping(transport)))
    return found


def serve(transport: mpi.MpiTransport, size: Size) -> None:
    """Run rank 1: send the gradients and answer the pings."""
    gradient = np.ones(size.group_bytes, np.uint8)
    buffers = [gradient.copy() for _ in range(size.groups)]
    frames = [wire.pack(wire.Kind.GRADIENT, gradient, sender=1, job=_JOB, group=group) for group in range(size.groups)]
    for _ in range(size.rounds):
        transport.call(lambda module: raw_seconds(module, 1, buffers), SECONDS)
        for _ in range(_REPEATS):
            transport.wait(_GO_TAG, SECONDS)
            began = np.array([time.perf_counter()])  # both ranks share the clock of the host
            transport.send(0, _TIME_TAG, [began.view(np.uint8)])
            for pending in [transport.send(0, _FRAME_TAG, [frame]) for frame in frames]:
                pending.wait(SECONDS)
        for _ in range(2 * _PINGS):
            transport.wait(_PING_TAG, SECONDS)
            transport.send(0, _PING_TAG, [b"pong"])


def _ingest(transport: mpi.MpiTransport, sums: list[Floats]) -> float:
    """Return the seconds from the worker's first send until rank 0 has checked and added the last group."""
    transport.send(1, _GO_TAG, [b"go"])
    began = float(transport.wait(_TIME_TAG, SECONDS).data.view(np.float64)[0])
    for _ in sums:
        arrival: Arrival = transport.wait(_FRAME_TAG, SECONDS)
        frame = wire.unpack(arrival.data, job=_JOB, source=1, release=arrival.release)
        np.add(sums[frame.group], frame.body.view(np.float32), out=sums[frame.group])
        frame.release()
    return time.perf_counter() - began


def _add(buffers: list[Bytes], sums: list[Floats]) -> None:
    for buffer, total in zip(buffers, sums, strict=True):
        np.add(total, buffer.view(np.float32), out=total)


def _ping(transport: mpi.MpiTransport) -> None:
    transport.send(1, _PING_TAG, [b"ping"])
    transport.wait(_PING_TAG, SECONDS)


def _timed(action: Any) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def idle_share(seconds: float) -> float:
    """Return the share of a core that this process uses while no rank sends: processor time over wall-clock time."""
    time.sleep(0.5)
    cpu, wall = time.process_time(), time.perf_counter()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def main(result: str, groups: str, group_bytes: str, rounds: str, idle_seconds: str) -> None:
    """Run this rank's part. Rank 0 writes the seconds of every repetition to the file `result`."""
    transport = mpi.start()
    size = Size(int(groups), int(group_bytes), int(rounds))
    share = idle_share(float(idle_seconds))
    if transport.rank == 0:
        found = measure(transport, size)
        Path(result).write_text(to_json({"seconds": found, "idle_share": share}))
    else:
        serve(transport, size)
    transport.close()
    if not transport.clean:
        os._exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
