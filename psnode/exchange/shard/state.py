"""Tensors of a shard for a checkpoint, and from one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch

from psnode.plan.part import PlanPart

Tensors = dict[str, torch.Tensor]


class ShardState(NamedTuple):
    """Tensors of a checkpoint: the model with x, the optimizer's memories, y (empty where y is x), and the model with
    its moving average (empty where there is none).

    Those of x, y and momenta are the shard's own memory, which later versions change, or copies of tensors on a device. Names
    are as psnode.records.state_names says.
    """

    model: Tensors
    optimizer: Tensors
    replica: Tensors
    average: Tensors


def with_copies_of_the_rest(state: ShardState, x: torch.Tensor) -> ShardState:
    """`state` with copies of tensors that are not views of `x`: a constraint may change that too, when all groups are updated."""
    here = x.untyped_storage().data_ptr()
    rest = {name: value for name, value in state.model.items() if value.untyped_storage().data_ptr() != here}
    copies = {name: value.clone() for name, value in rest.items()}
    shared = {name for name in rest if name in state.average and state.average[name].data_ptr() == rest[name].data_ptr()}
    average = {name: copies[name] if name in shared else value for name, value in state.average.items()}
    return state._replace(model={**state.model, **copies}, average=average)


def own_tensors(part: PlanPart, tensors: Mapping[str, torch.Tensor], *, memories: bool) -> Tensors:
    """Of a checkpoint's tensors those that belong to `part`: of a tensor that it has some coordinates of these, flat.

    `memories`: the tensor's name follows the memory's and a slash. Tensors outside the plan stay.
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
