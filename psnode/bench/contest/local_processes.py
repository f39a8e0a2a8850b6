"""Processes of torch.distributed on this host, which communicate by gloo over the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

from psnode.errors import TransportError


def run_processes(module: str, program: Path, workers: int, seconds: float | None) -> None:
    """Run `python -m module program` as `workers` processes, with the variables of torch.distributed and one thread each.

    Raises TransportError if a process fails, or if one still runs after `seconds` (None: no limit).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "LOCAL_RANK": 0}
    shared |= {"GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", module, str(program)]
    environments = [{**os.environ, **{k: str(v) for k, v in {**shared, "RANK": rank}.items()}} for rank in range(workers)]
    processes = [subprocess.Popen(command, env=each, stdin=subprocess.DEVNULL) for each in environments]
    try:
        codes = [process.wait(seconds) for process in processes]
    except subprocess.TimeoutExpired:
        raise TransportError(f"no end within {seconds:g} s: take fewer --steps") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        raise TransportError(f"the processes ended with {codes}: see their messages above")
