"""Tensors of a shard that are written to a checkpoint, and loaded from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from psnode.plans.part import PlanPart

Tensors = dict[str, torch.Tensor]


class ShardState(NamedTuple):
    """Tensors of a shard's checkpoint, named as in psnode.records.state_names.

    `model`: the model with x; `optimizer`: the optimizer's memories; `replica`: y, empty if y is x; `average`: the model with
    averaged weights, empty if there is no average. Tensors of x, y and the optimizer's vectors are either the shard's own
    arrays, which later versions change, or copies of tensors on a device.
    """

    model: Tensors
    optimizer: Tensors
    replica: Tensors
    average: Tensors


def with_copies_of_the_rest(state: ShardState, x: torch.Tensor) -> ShardState:
    """Return `state` with copies of all tensors of the model that are not views of `x`.

    They are copied because a constraint may change these tensors as well.
    """
    here = x.untyped_storage().data_ptr()
    rest = {name: value for name, value in state.model.items() if value.untyped_storage().data_ptr() != here}
    copies = {name: value.clone() for name, value in rest.items()}
    shared = {name for name in rest if name in state.average and state.average[name].data_ptr() == rest[name].data_ptr()}
    average = {name: copies[name] if name in shared else value for name, value in state.average.items()}
    return state._replace(model={**state.model, **copies}, average=average)


def own_tensors(part: PlanPart, tensors: Mapping[str, torch.Tensor], *, memories: bool) -> Tensors:
    """Return a checkpoint's tensors that belong to `part`. A tensor that lies only partly in `part` is cut.

    A cut tensor is flat and has only the coordinates in `part`. `memories`: True if names are MEMORY/TENSOR instead of TENSOR.
    Tensors that are not in the plan are returned unchanged.
    """
    if part.is_whole:
        return dict(tensors)
    known, own, found = part.whole.slices(), part.own.slices(), Tensors()
    for key, value in tensors.items():
        name = key.partition("/")[2] if memories else key
        if name in known and name not in own:
            continue
        cut = name in part.pieces and value.numel() == known[name].stop - known[name].start
        found[key] = torch.cat([value.reshape(-1)[where] for where in part.pieces[name]]) if cut else value
    return found
