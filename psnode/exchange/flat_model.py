"""A model whose trained parameters lie in one flat vector, in the order of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.plans.groups import Plan, Tensor
from psnode.tasks import tensor_names


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters to exchange, in state-dict order. Raises ConfigurationError if one of them is not float32."""
    found = {name: parameter for name, parameter in tensor_names.parameters(model) if parameter.requires_grad}
    for name, parameter in found.items():
        if parameter.dtype is not torch.float32:
            raise ConfigurationError(f"parameter {name} is {parameter.dtype}: psnode exchanges float32 weights only")
    return found


def describe(model: nn.Module) -> list[Tensor]:
    """Return the trainable tensors of `model`, in state-dict order."""
    return [Tensor(name, tuple(parameter.shape)) for name, parameter in trainable(model).items()]


class MovedParameter(NamedTuple):
    """Parameter that no longer lies in the flat vector. `view`: a view of the vector where the parameter should lie."""

    name: str
    parameter: nn.Parameter
    view: torch.Tensor


class FlatModel:
    """`model` with its trained `parameters` as views of `vector`, a float32 vector of length `plan.size`.

    The values of the model are copied into `vector`, and replace the previous contents.
    """

    def __init__(self, model: nn.Module, plan: Plan, vector: torch.Tensor) -> None:
        self.model = model
        self.plan = plan
        self.vector = vector
        self.parameters = trainable(model)
        self.views: dict[str, torch.Tensor] = {}
        for name, where in plan.slices().items():
            parameter = self.parameters[name]
            vector[where] = parameter.detach().reshape(-1)
            parameter.data = self.views[name] = vector[where].view(parameter.shape)
            parameter.grad = None

    def moved(self) -> Iterator[MovedParameter]:
        """Yield the parameters that the model has moved to other memory, or whose coordinates it has put in another order."""
        for name, view in self.views.items():
            parameter = self.parameters[name]
            if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                yield MovedParameter(name, parameter, view)
