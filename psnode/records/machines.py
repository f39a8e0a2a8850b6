"""machines.json: the hosts on which a run computes, and the time that worker 1's gradients take on its host."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.records.metrics import write_atomically

MACHINES = "machines.json"


def write_machines(directory: Path, ranks: Mapping[int, Mapping[str, Any]], backward: Mapping[str, float] | None) -> None:
    """Replace machines.json: `ranks` (host, cores, arithmetic) of this start of the run, and worker 1's `backward` seconds.

    `backward`: by tensor, from the beginning of a backward pass until its gradient is ready, in that order.
    """
    content = {"ranks": {str(rank): dict(found) for rank, found in sorted(ranks.items())}, "backward": backward}
    write_atomically(directory / MACHINES, to_json(content, indent=1).encode() + b"\n")
