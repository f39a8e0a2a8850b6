"""Tensors of a shard for a checkpoint."""

from __future__ import annotations

from typing import NamedTuple

import torch

Tensors = dict[str, torch.Tensor]


class ShardState(NamedTuple):
    """Tensors of a checkpoint: the model with x, the optimizer's memories, y (empty where y is x), and the model with
    its moving average (empty where there is none).

    Those of x, y and momenta are the shard's own memory, which later versions change, or copies of what is on a device. Names
    are as psnode.records.layout says.
    """

    model: Tensors
    optimizer: Tensors
    replica: Tensors
    average: Tensors


def with_copies_of_the_rest(state: ShardState, x: torch.Tensor) -> ShardState:
    """`state` with copies of what is no view of `x`: a constraint may change that too, when all groups are updated."""
    here = x.untyped_storage().data_ptr()
    rest = {name: value for name, value in state.model.items() if value.untyped_storage().data_ptr() != here}
    copies = {name: value.clone() for name, value in rest.items()}
    shared = {name for name in rest if name in state.average and state.average[name].data_ptr() == rest[name].data_ptr()}
    average = {name: copies[name] if name in shared else value for name, value in state.average.items()}
    return state._replace(model={**state.model, **copies}, average=average)
