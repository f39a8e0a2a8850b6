"""The machine of a rank, and how its processor rounds: reported at the start, and kept in the run's machines.json."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch

from psnode.codecs.kernels.llvm.runtime_values import rounds_once
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
