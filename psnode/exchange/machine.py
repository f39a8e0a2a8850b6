"""Machine of a rank, and the rounding of its processor. Ranks report both at the start, and machines.json records them."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Any

import torch

from psnode.codecs.kernels.llvm.runtime_values import rounds_once
from psnode.config.cores import usable_cores


@dataclass(frozen=True)
class Machine:
    """Machine of a rank. `host`: its name; `cores`: number of cores that the rank may use.

    `arithmetic`: properties of the processor on which the bits of an optimizer step depend. Its entry `fma` is True if
    psnode's SGD rounds a * b + c once. Its entry `aten` names the vector instructions of torch's optimizers, as
    `torch.backends.cpu.get_cpu_capability` does.
    """

    host: str
    cores: int
    arithmetic: dict[str, Any]

    @classmethod
    def here(cls) -> Machine:
        """Return the machine of this process."""
        fma = rounds_once()
        return cls(socket.gethostname(), usable_cores(), {"fma": fma, "aten": torch.backends.cpu.get_cpu_capability()})
