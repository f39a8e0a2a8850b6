"""The weights with which every rank of a session ends: rank 0 distributes those of the last checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from psnode.protocol.wire import Kind
from psnode.records import checkpoint, tensorfile
from psnode.tasks import inventory

if TYPE_CHECKING:
    import torch

    from psnode.protocol.channel import FrameChannel


def hand_out(
    model: torch.nn.Module, run: Path, step: int, code: int, channel: FrameChannel, ranks: Iterable[int], patience: float
) -> None:
    """Load the checkpoint of `step` into rank 0's `model` and send it with the exit code to all ranks; after a stop send no
    weights."""
    values: dict[str, torch.Tensor] = {}
    if code == 0:
        found = checkpoint.Checkpoint.open(run / checkpoint.CHECKPOINTS / checkpoint.step_directory(step))
        values = found.tensors(checkpoint.MODEL)
        inventory.put_back(model, values)
    inventory.give_own_memory(model)
    chunks, readers = list(inventory.chunks(values, values)) or [{}], list(ranks)
    for index, chunk in enumerate(chunks):
        left = len(chunks) - 1 - index
        for pending in channel.send(readers, Kind.STATE, tensorfile.dump(chunk), step=left, version=code):
            pending.wait(patience)


def take(model: torch.nn.Module, channel: FrameChannel, patience: float) -> int:
    """Load the weights that rank 0 distributes into a worker's `model`, and return the exit code."""
    left = 1
    while left:
        frame = channel.expect(Kind.STATE, patience)
        inventory.put_back(model, tensorfile.parse(bytes(frame.body), "the end of the run"))
        left, code = frame.step, frame.version
        frame.release()
    return code
