"""LeNet on digits, on one of whose ranks the process is killed within a backward pass: `--task tests/faults/dying.py:Dies`."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from psnode.tasks.classification import Classification

FILE = Path(__file__).resolve()


class Dies(Classification):
    """The task. Options: `rank`; `batch`, the number of the batch in whose backward pass it dies, counted from 1."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(network="LeNet", dataset="digits", seed=1)
        given = dict(options or {})
        mine = os.environ.get("OMPI_COMM_WORLD_RANK") == given["rank"]
        self._left = int(given["batch"]) if mine else -1

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and outputs. The gradient of the first parameter is the last one of a backward pass."""
        loss, outputs = super().loss(model, batch)
        self._left -= model.training
        if self._left == 0:
            next(model.parameters()).register_hook(_die)
        return loss, outputs


def _die(gradient: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def flags(rank: int, batch: int) -> list[str]:
    """Return the flags of the command line for this task."""
    return ["--task", f"{FILE}:Dies", "--task-option", f"rank={rank}", "--task-option", f"batch={batch}"]
