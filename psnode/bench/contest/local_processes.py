"""Processes of torch.distributed on this host, which communicate by gloo over the loopback interface."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence

from psnode.errors import TransportError


def run_processes(
    command: Sequence[str], workers: int, seconds: float | None, environment: Mapping[str, str] = os.environ
) -> None:
    """Run a command as `workers` processes, each with the environment variables of torch.distributed and one thread.

    Raises TransportError if a process fails, or if a process still runs after `seconds` (None: no limit).
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"WORLD_SIZE": workers, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": 1, "LOCAL_RANK": 0}
    shared |= {"GLOO_SOCKET_IFNAME": "lo"}
    environments = [{**environment, **{k: str(v) for k, v in {**shared, "RANK": rank}.items()}} for rank in range(workers)]
    processes = [subprocess.Popen(command, env=each, stdin=subprocess.DEVNULL) for each in environments]
    end = None if seconds is None else time.monotonic() + seconds
    try:
        codes = [process.wait(end if end is None else max(0.0, end - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        raise TransportError(f"no end within {seconds:g} s: take fewer --steps") from None
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(codes):
        raise TransportError(f"the processes ended with {codes}: see their messages above")
