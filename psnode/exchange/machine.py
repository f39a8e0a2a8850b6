"""The machine of a rank, and how its processor rounds: reported at the start, and kept in the run's machines.json."""

from __future__ import annotations

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from psnode.codecs.kernels.llvm.values import rounds_once
from psnode.config.cores import usable_cores


@dataclass(frozen=True)
class Machine:
    """`host`: its name; `cores`: those that the rank may use.

    `arithmetic` decides bits of an optimizer step: `fma`, whether psnode's SGD rounds a * b + c once; `aten`, the vector
    instructions of torch's optimizers, as `torch.backends.cpu.get_cpu_capability` calls them.
    """

    host: str
    cores: int
    arithmetic: dict[str, Any]

    @classmethod
    def here(cls) -> Machine:
        """That of this process."""
        fma = rounds_once()
        return cls(socket.gethostname(), usable_cores(), {"fma": fma, "aten": torch.backends.cpu.get_cpu_capability()})


def free_memory() -> int | None:
    """Bytes that programs on this host can still take, swap included, within this process's control group; None if not told."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = 1024 * (int(lines["MemAvailable"].split()[0]) + int(lines["SwapFree"].split()[0]))
    except (OSError, KeyError, ValueError):
        return None
    with contextlib.suppress(OSError, ValueError, StopIteration):  # no limit is the word max
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        group = Path("/sys/fs/cgroup", own.removeprefix("0::").lstrip("/"))
        free = min(free, int((group / "memory.max").read_text()) - int((group / "memory.current").read_text()))
    return max(0, free)
