"""A job on one host listens on no network: its ranks use shared memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Launched = Callable[..., Any]


def listening(pid: int) -> list[str]:
    """Return the local addresses of the TCP sockets on which a process listens, as written in /proc."""
    found = []
    inodes = {str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in inodes:
                found.append(fields[1])
    return found


def test_the_ranks_of_a_local_job_listen_nowhere(launched: Launched) -> None:
    job = launched(2, "--max-steps", "100000")
    job.wait_for_step(2)
    assert [listening(job.pid(rank)) for rank in range(3)] == [[], [], []]
