"""The final weights of a session: rank 0 sends the weights of the last checkpoint to all ranks."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from psnode.protocol.wire import Kind
from psnode.records import checkpoint, tensorfile
from psnode.tasks import model_tensors

if TYPE_CHECKING:
    import torch

    from psnode.protocol.channel import FrameChannel


def hand_out(
    model: torch.nn.Module, run: Path, step: int, code: int, channel: FrameChannel, ranks: Iterable[int], patience: float
) -> None:
    """Load the checkpoint of `step` into rank 0's `model`, and send its weights and the exit code `code` to `ranks`.

    If the job was stopped (`code` is not 0), only the exit code is sent. `patience`: the time limit of each message in
    seconds.
    """
    values: dict[str, torch.Tensor] = {}
    if code == 0:
        found = checkpoint.Checkpoint.open(run / checkpoint.CHECKPOINTS / checkpoint.step_directory(step))
        values = found.tensors(checkpoint.MODEL)
        model_tensors.put_back(model, values)
    model_tensors.give_own_memory(model)
    chunks, readers = list(model_tensors.chunks(values, values)) or [{}], list(ranks)
    for index, chunk in enumerate(chunks):
        left = len(chunks) - 1 - index
        for pending in channel.send(readers, Kind.STATE, tensorfile.dump(chunk), step=left, version=code):
            pending.wait(patience)


def take(model: torch.nn.Module, channel: FrameChannel, patience: float) -> int:
    """Load, into a worker's `model`, the weights that rank 0 sends. Return the job's exit code, which comes with them."""
    left = 1
    while left:
        frame = channel.expect(Kind.STATE, patience)
        model_tensors.put_back(model, tensorfile.parse(bytes(frame.body), "the end of the run"))
        left, code = frame.step, frame.version
        frame.release()
    return code
