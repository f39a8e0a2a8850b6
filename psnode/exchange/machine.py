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

_GROUPS = Path("/sys/fs/cgroup")


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
    with contextlib.suppress(OSError, StopIteration):
        own = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
        left = memory_left(_GROUPS, own.removeprefix("0::").lstrip("/"))
        free = free if left is None else min(free, left)
    return max(0, free)


def memory_left(root: Path, group: str) -> int | None:
    """Bytes that a control group (version 2, below `root`) and those around it still allow; None if none of them has a limit.

    Pages of files count as used there, but are given up when memory is wanted, as /proc/meminfo's MemAvailable has it; those of
    shared memory are not.
    """
    found = []
    for place in (root / group, *(root / group).parents):
        if not place.is_relative_to(root):
            break
        with contextlib.suppress(OSError, KeyError, ValueError):  # no limit is the word max
            limit = int((place / "memory.max").read_text())
            held = dict(line.split() for line in (place / "memory.stat").read_text().splitlines())
            used = int((place / "memory.current").read_text()) - int(held["file"]) + int(held["shmem"])
            found.append(limit - used)
    return min(found, default=None)
