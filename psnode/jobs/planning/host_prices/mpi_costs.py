"""Measurement of the cost of frames through MPI: two ranks of a job on this host exchange frames over TCP.

A byte of a frame costs more than a byte through a socket, since MPI copies it and polls both ends alternately, and since the
frame has a checksum.
"""

from __future__ import annotations

import os
import statistics
import sys

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.jobs.hosts.probes import probe
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import answer, measure_links
from psnode.protocol.wire import Kind
from psnode.transport.mpi.environment import place

_SECONDS, _ROUNDS = 60.0, 9
# Open MPI shares memory between the ranks of a host unless told otherwise; other MPIs ignore these
_VARIABLES = {
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_pml": "ob1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def mpi_cost() -> float:
    """Return the seconds of a core that a byte of a frame through MPI costs at each end.

    Returns 0.0 if no job of two ranks can be started here, for example because this process is itself a rank of a job.
    """
    from psnode.jobs import launch

    if place() is not None:
        return 0.0
    try:
        command = launch.mpirun_command(launch.find_mpirun(), 2, None, (), {**os.environ, **_VARIABLES})
    except ConfigurationError:
        return 0.0
    found = probe([*command, *launch.startable([sys.executable, "-m", __name__])], _VARIABLES, _SECONDS)
    return float(found.get("seconds", 0.0))


def exchange() -> None:
    """As rank 0, print the seconds of a byte of a frame as JSON. As rank 1, answer the frames.

    They are the median of several measurements of both directions, since a pause of either rank changes a measurement.
    """
    from psnode.transport.mpi import endpoint

    transport = endpoint.start(seconds=_SECONDS)
    link = FrameChannel(transport)
    if transport.rank == MASTER:
        found = [measure_links(link, (1,), _SECONDS) for _ in range(_ROUNDS)]
        link.send(1, Kind.END)
        print(to_json({"seconds": statistics.median((1 / each.up + 1 / each.down) / 2 for each in found)}), flush=True)
    else:
        while (frame := link.expect(Kind.PROBE, _SECONDS, Kind.END)).kind is Kind.PROBE:
            answer(link, frame)
    transport.close()


if __name__ == "__main__":
    exchange()
