"""Measurement of the cost of frames through MPI: two ranks of a job on this host exchange frames over TCP.

A byte of a frame costs more than a byte through a socket, since MPI copies it and polls both ends alternately, and since the
frame has a checksum. A frame also has a fixed cost: the thread that calls MPI wakes up, and polls until the frame is complete.
The passes of a step take the code and the data of this thread out of the caches, so frames that follow other work cost several
times as much as frames that follow each other.
"""

from __future__ import annotations

import os
import statistics
import sys
from typing import NamedTuple

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.jobs.hosts.probes import probe
from psnode.jobs.planning.host_prices.other_work import OtherWork, seconds_of_other_threads
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import answer, measure_links
from psnode.protocol.wire import Kind
from psnode.transport.mpi.environment import place

_SECONDS, _ROUNDS = 60.0, 9
_TRIPS, _WARMUP = 60, 10  # of pairs of small frames; in a step a gradient and a report go up, weights and a message come down
# Open MPI shares memory between the ranks of a host unless told otherwise; other MPIs ignore these
_VARIABLES = {
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_pml": "ob1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


class FrameCosts(NamedTuple):
    """The seconds of a core that a frame through MPI costs at each end: for the frame, and for each of its bytes.

    `message`: the work of the thread that calls MPI. Without a measurement it is about the cost of a wake-up of this thread in
    docs/results/2026-11-23-threads.md, and `byte` is 0.
    """

    message: float = 1e-4
    byte: float = 0.0


def frame_costs() -> FrameCosts:
    """Return the costs of frames between two ranks on this host, or FrameCosts() if no job of two ranks can be started here.

    For example, none can be started if this process is itself a rank of a job.
    """
    from psnode.jobs import launch

    if place() is not None:
        return FrameCosts()
    try:
        command = launch.mpirun_command(launch.find_mpirun(), 2, None, (), {**os.environ, **_VARIABLES})
    except ConfigurationError:
        return FrameCosts()
    found = probe([*command, *launch.startable([sys.executable, "-m", __name__])], _VARIABLES, _SECONDS)
    return FrameCosts(float(found["message"]), float(found["byte"])) if "byte" in found else FrameCosts()


def exchange() -> None:
    """As rank 0, print the costs of frames as JSON. As rank 1, answer the frames.

    The cost of a byte is the median of several measurements of both directions, since a pause of either rank changes a
    measurement.
    """
    from psnode.transport.mpi import endpoint

    transport = endpoint.start(seconds=_SECONDS)
    link = FrameChannel(transport)
    if transport.rank == MASTER:
        found = [measure_links(link, (1,), _SECONDS) for _ in range(_ROUNDS)]
        link.send(1, Kind.END)
        message = _small_frames(link)
        byte = statistics.median((1 / each.up + 1 / each.down) / 2 for each in found)
        print(to_json(FrameCosts(message, byte)._asdict()), flush=True)
    else:
        while (frame := link.expect(Kind.PROBE, _SECONDS, Kind.END)).kind is Kind.PROBE:
            answer(link, frame)
        _small_frames(link)
    transport.close()


def _small_frames(link: FrameChannel) -> float:
    """Exchange small frames with the other rank. Each rank works between two pairs of frames.

    Returns the processor seconds outside this thread for each frame, sent or received.
    """
    other, work, used = 1 - link.rank, OtherWork(), 0.0
    for trip in range(_WARMUP + _TRIPS):
        if trip == _WARMUP:
            used = seconds_of_other_threads()
        if link.rank != MASTER:
            _receive_pair(link)
        work.for_a_step()
        for _ in range(2):
            link.send(other, Kind.PROBE)
        if link.rank == MASTER:
            _receive_pair(link)
    return (seconds_of_other_threads() - used) / (4 * _TRIPS)


def _receive_pair(link: FrameChannel) -> None:
    for _ in range(2):
        link.expect(Kind.PROBE, _SECONDS).release()


if __name__ == "__main__":
    exchange()
