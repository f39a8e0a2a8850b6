"""A task, LeNet on digits, that kills the process of one rank within a backward pass: `--task tests/faults/dying.py:Dies`."""

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
    """LeNet on digits; the process of one rank dies in a backward pass.

    Options: `rank`; `batch`, the number of the batch in whose backward pass the process dies, counted from 1; `reaches`, the
    number of receivers that each of its last frames reaches, 0 for all.
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
            sends = _reach(self._reaches)
            groups = len({name.rpartition(".")[0] for name, _ in model.named_parameters()})  # one for each layer

            def die(gradient: torch.Tensor) -> None:
                if self._reaches:  # the frames of all other layers are there first
                    _await(sends, groups - 1)
                os.kill(os.getpid(), signal.SIGKILL)

            next(model.parameters()).register_hook(die)
        return loss, outputs


def _await(sends: list[list[Pending]], count: int) -> None:
    """Block until `count` frames have left."""
    end = time.monotonic() + 120
    while len(sends) < count or not all(each.done for sent in sends for each in sent):
        if time.monotonic() > end:
            raise TimeoutError(f"{len(sends)} of {count} frames have left")
        time.sleep(0.01)
    time.sleep(1.0)  # a frame that has left this process may still be in buffers


def _reach(count: int) -> list[list[Pending]]:
    """Make each frame for several ranks reach only the first `count` of them (0: all), as if the process died in between.

    Return the sends of these frames, a list per frame, which grows as frames are sent.
    """
    send, found = FrameChannel.send_frame, list[list[Pending]]()

    def sent(link: FrameChannel, ranks: int | Sequence[int], frame: Bytes, tag: int | None = None) -> list[Pending]:
        if isinstance(ranks, int):
            return send(link, ranks, frame, tag)
        found.append(send(link, ranks[: count or None], frame, tag))
        return found[-1]

    FrameChannel.send_frame = sent  # type: ignore[method-assign]
    return found


def flags(rank: int, batch: int, reaches: int = 0) -> list[str]:
    """Return the flags of the command line for this task."""
    options = {"rank": rank, "batch": batch, "reaches": reaches}
    return ["--task", f"{FILE}:Dies", *(word for name, value in options.items() for word in ("--task-option", f"{name}={value}"))]
