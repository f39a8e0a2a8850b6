"""Model whose trained parameters are the weights x, which optimizers update."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import xxhash

from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.flat_model import FlatModel
from psnode.exchange.update.weight_vector import Constraint, Newest, Tensors, WeightsWithoutModel, unchanged
from psnode.plans.part import part_of
from psnode.tasks import tensor_names
from psnode.tasks.model_tensors import bits, fit


class ServedModel(FlatModel):
    """Weights of all groups of a plan, in a model with its buffers and frozen parameters."""

    def part(self, groups: Iterable[int]) -> WeightsWithoutModel:
        """Return a copy of the weights of the plan's groups with the numbers `groups`."""
        return WeightsWithoutModel.of(part_of(self.plan, groups), self.vector)

    def constrain(self, constraint: Constraint) -> None:
        """Call `constraint` on the model.

        The constraint may change the model's weights in place, or replace a parameter's data by other data of the same shape
        and dtype.
        """
        with torch.no_grad():
            constraint(self.model)
        for name, parameter, view in self.moved():
            if parameter.shape != view.shape or parameter.dtype is not view.dtype:
                raise ConfigurationError(
                    f"Task.constrain makes parameter {name} {tuple(parameter.shape)} of {parameter.dtype}: it must stay "
                    f"{tuple(view.shape)} of {view.dtype}"
                )
            view.copy_(parameter.detach())
            parameter.data = view

    def digest(self, newest: Newest = unchanged) -> str:
        """Return xxh3_128 of the bytes of all parameters, including frozen parameters, in state-dict order."""
        state = xxhash.xxh3_128()
        for _, parameter in self.model.named_parameters():
            state.update(bits(newest(parameter.detach())))
        return state.hexdigest()

    def state(self, vector: torch.Tensor | None = None) -> Tensors:
        """Return the model's state dict. If `vector` is given, the trained parameters, including tied ones, are views of it."""
        found: Tensors = tensor_names.state(self.model)
        if vector is None:
            return found
        own = {id(parameter): name for name, parameter in tensor_names.parameters(self.model)}
        places = self.plan.slices()
        for alias, parameter in tensor_names.parameters(self.model, aliases=True):
            name = own[id(parameter)]
            if name in places and alias in found:
                found[alias] = vector[places[name]].view(found[alias].shape)
        return found

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the contents of model.safetensors. Raises CheckpointError if they do not fit."""
        fit(self.model, tensors)
        expected = tensor_names.state(self.model)
        for name, value in expected.items():
            if name not in tensors or tensors[name].shape != value.shape:
                raise CheckpointError(f"the checkpoint's model does not fit this network: {name} is missing or of another shape")
        if unknown := sorted(set(tensors) - set(expected)):
            raise CheckpointError(f"the checkpoint's model does not fit this network: {unknown[0]} is unknown")
        with torch.no_grad():
            for name, value in expected.items():
                value.copy_(tensors[name])
