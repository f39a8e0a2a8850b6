"""The file machines.json: the hosts on which a run computes, and the times at which gradients are ready on worker 1."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.records.metrics import write_atomically

MACHINES = "machines.json"


def write_machines(directory: Path, ranks: Mapping[int, Mapping[str, Any]], backward: Mapping[str, float] | None) -> None:
    """Replace machines.json by the facts of this start of the run.

    `ranks` gives host, cores and arithmetic of each rank. `backward` gives for each tensor, in the order in which gradients
    become ready, the seconds from the beginning of worker 1's backward pass until the tensor's gradient is ready.
    """
    content = {"ranks": {str(rank): dict(found) for rank, found in sorted(ranks.items())}, "backward": backward}
    write_atomically(directory / MACHINES, to_json(content, indent=1).encode() + b"\n")
