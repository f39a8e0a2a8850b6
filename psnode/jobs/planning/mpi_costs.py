"""Measurement of frames through MPI: the rate of a job of two ranks on this host that exchange them over TCP.

The bytes of a frame cost more than those of a socket: MPI copies them, checks both ends in turn, and the frame has a checksum.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError
from psnode.plans.roles import MASTER
from psnode.protocol.channel import FrameChannel
from psnode.protocol.link_rates import answer, measure_links
from psnode.protocol.wire import Kind
from psnode.transport.mpi.environment import place

_SECONDS = 60.0
# Open MPI shares memory between the ranks of a host unless told otherwise; other MPIs ignore these
_VARIABLES = {
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_pml": "ob1",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}


def mpi_cost() -> float:
    """Return the seconds of a core, at each end, for each byte of a frame; 0.0 if no job of two ranks can be started here.

    So it is in a process that is a rank of a job itself.
    """
    from psnode.jobs import launch

    if place() is not None:
        return 0.0
    home = str(Path(__file__).resolve().parents[3])
    environment = {**os.environ, **_VARIABLES, "PYTHONPATH": os.pathsep.join(filter(None, (home, os.environ.get("PYTHONPATH"))))}
    try:
        command = launch.mpirun_command(launch.find_mpirun(), 2, None, (), environment)
        program = launch.startable([sys.executable, "-m", __name__])
        done = subprocess.run([*command, *program], env=environment, capture_output=True, text=True, timeout=_SECONDS)
        rates = json.loads(done.stdout.strip().splitlines()[-1])
        return (1 / float(rates["up"]) + 1 / float(rates["down"])) / 2
    except (ConfigurationError, OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError, ZeroDivisionError):
        return 0.0


def exchange() -> None:
    """Measure the rates as rank 0 and print them as JSON, or answer as rank 1."""
    from psnode.transport.mpi import endpoint

    transport = endpoint.start(seconds=_SECONDS)
    link = FrameChannel(transport)
    if transport.rank == MASTER:
        rates = measure_links(link, (1,), _SECONDS)
        link.send(1, Kind.END)
        print(to_json(rates._asdict()), flush=True)
    else:
        while (frame := link.expect(Kind.PROBE, _SECONDS, Kind.END)).kind is Kind.PROBE:
            answer(link, frame)
    transport.close()


if __name__ == "__main__":
    exchange()
