"""LeNet on digits, on one of whose ranks the process is killed within a backward pass: `--task tests/faults/dying.py:Dies`."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Bytes
from psnode.tasks.classification import Classification
from psnode.transport.base import Pending

FILE = Path(__file__).resolve()


class Dies(Classification):
    """The task.

    Options: `rank`; `batch`, the number of the batch in whose backward pass it dies, counted from 1; `reaches`, the number of
    receivers that each of its last frames reaches, 0 for all.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(network="LeNet", dataset="digits", seed=1)
        given = dict(options or {})
        self._reaches = int(given["reaches"])
        mine = os.environ.get("OMPI_COMM_WORLD_RANK") == given["rank"]
        self._left = int(given["batch"]) if mine else -1

    def loss(self, model: torch.nn.Module, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return loss and outputs. The gradient of the first parameter is the last one of a backward pass."""
        loss, outputs = super().loss(model, batch)
        self._left -= model.training
        if self._left == 0:
            _reach(self._reaches)
            next(model.parameters()).register_hook(_die if self._reaches == 0 else _die_later)
        return loss, outputs


def _die(gradient: torch.Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_later(gradient: torch.Tensor) -> None:
    time.sleep(1.0)  # until the groups that were finished before have left
    _die(gradient)


def _reach(count: int) -> None:
    """Have each frame that goes to several ranks reach the first `count` of them, as if the process died in between."""
    send = FrameChannel.send_frame

    def sent(link: FrameChannel, ranks: int | Sequence[int], frame: Bytes, tag: int | None = None) -> list[Pending]:
        return send(link, ranks if isinstance(ranks, int) else ranks[: count or None], frame, tag)

    FrameChannel.send_frame = sent  # type: ignore[method-assign]


def flags(rank: int, batch: int, reaches: int = 0) -> list[str]:
    """Return the flags of the command line for this task."""
    options = {"rank": rank, "batch": batch, "reaches": reaches}
    return ["--task", f"{FILE}:Dies", *(word for name, value in options.items() for word in ("--task-option", f"{name}={value}"))]
