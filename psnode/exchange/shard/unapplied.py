"""Gradients that had come but were not applied when a job was stopped. The last checkpoint keeps them for a resumed run."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from psnode.errors import CheckpointError
from psnode.protocol.wire import Flag, Frame, Kind
from psnode.records.checkpoint import WAITING, Checkpoint

Tensors = dict[str, torch.Tensor]


def pack(frames: Iterable[Frame]) -> Tensors:
    """Return the bodies of gradient frames as tensors, named RANK/STEP/VERSION/GROUP/FLAGS."""
    return {f"{f.sender}/{f.step}/{f.version}/{f.group}/{f.flags.value}": torch.from_numpy(np.array(f.body)) for f in frames}


def unpack(found: Checkpoint | None) -> list[Frame]:
    """Return the gradient frames that a checkpoint keeps, sorted by step, rank and group. The list is empty if it keeps none."""
    if found is None or not found.has(WAITING):
        return []
    frames = []
    for name, body in found.tensors(WAITING).items():
        try:
            rank, step, version, group, flags = map(int, name.split("/"))
        except ValueError as error:
            raise CheckpointError(f"{found.path / WAITING} holds {name[:60]!r}, which is no gradient") from error
        frames.append(Frame(Kind.GRADIENT, Flag(flags), rank, group, step, version, body.numpy()))
    return sorted(frames, key=lambda frame: (frame.step, frame.sender, frame.group))
