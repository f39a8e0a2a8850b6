"""A worker's model. Its trained weights are the vector theta, which no other code may write, and its buffers keep their types."""

from __future__ import annotations

from functools import cached_property

import torch
import xxhash
from torch import nn

from psnode.errors import ConfigurationError
from psnode.exchange.flat_model import FlatModel
from psnode.plans.groups import Plan
from psnode.tasks import tensor_names
from psnode.tasks.model_tensors import bits, give_own_memory, load, norm_statistics, persistent_buffers, same


def written(name: str, *, trained: bool = True) -> ConfigurationError:
    """Return the error for a model that changes its parameter `name` itself. `trained`: False for a frozen parameter."""
    if not trained:
        return ConfigurationError(
            f"the model itself writes parameter {name}, which is not trained: the master would not hear of it; "
            "keep it as a buffer (register_buffer), which checkpoints take from the workers (docs/models.md)"
        )
    return ConfigurationError(
        f"the model itself or its loop writes parameter {name}, and the master's next weights would undo that: move it into "
        "Task.constrain, or constrain= of a session, which the master calls after each update (docs/models.md)"
    )


class TrainedModel(FlatModel):
    """`model` on `device`, with its parameters as views of `vector`. This vector is theta, and begins with the model's values."""

    def __init__(self, model: nn.Module, plan: Plan, device: torch.device) -> None:
        super().__init__(model.to(device), plan, torch.empty(plan.size, device=device))
        self.device = device
        self._versions = {name: parameter._version for name, parameter in self.parameters.items()}
        self._frozen = {name: value for name, value in tensor_names.parameters(model) if not value.requires_grad}
        self._versions |= {name: parameter._version for name, parameter in self._frozen.items()}

    def check(self, *, settled: bool = True) -> None:
        """Check that the model still computes with `vector`. Call this after a step of the model.

        If the model has moved a parameter to other memory but kept its values (flatten_parameters), the parameter becomes a
        view of `vector` again. Raises ConfigurationError for a parameter that the model has written or whose values it has
        changed. `settled`: False if the weights have changed since the step, so that values cannot be compared.
        """
        moved = {each.name: each for each in self.moved()}
        for name in self.views:
            parameter = self.parameters[name]
            if name in moved:
                if settled and not (same(parameter, moved[name].view)):
                    raise written(name)
                parameter.data = moved[name].view
                self._versions[name] = parameter._version
            elif parameter._version != self._versions[name]:
                raise written(name)
        for name, parameter in self._frozen.items():
            if parameter._version != self._versions[name]:
                raise written(name, trained=False)

    def marks(self) -> dict[str, int]:
        """Return the xxh3_64 of each parameter, by name, with which `compare` finds changes.

        This also detects a write that torch does not record, such as weight.data.clamp_().
        """
        return {name: xxhash.xxh3_64_intdigest(bits(value)) for name, value in (*self.views.items(), *self._frozen.items())}

    def compare(self, marks: dict[str, int]) -> None:
        """Raise ConfigurationError for a parameter that has changed since `marks` were taken."""
        for name, mark in self.marks().items():
            if mark != marks[name]:
                raise written(name, trained=name in self.views)

    def release(self) -> None:
        """Give the parameters memory of their own, and release the vector, since no further step will come."""
        self.views.clear()
        give_own_memory(self.model)
        self.vector = torch.empty(0)

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return copies of the model's persistent buffers, by state-dict name, on the model's device.

        Batch-norm statistics are such buffers. Raises ConfigurationError if the dtype of a buffer, or the shape of a
        normalisation layer's buffer, has changed since the first call.
        """
        own = dict(tensor_names.buffers(self.model, aliases=True))
        found = {name: own[name].detach() for name in self._persistent if name in own}
        for name, value in found.items():
            dtype, shape = self._persistent[name]
            if value.dtype is not dtype or (value.shape != shape and name in self._fixed):
                raise ConfigurationError(
                    f"buffer {name} began as {dtype} of shape {tuple(shape)} and is {value.dtype} of shape {tuple(value.shape)} "
                    "now: give it its last type in Task.model(), or register it with persistent=False"
                )
        return {name: value.clone() for name, value in found.items()}

    def load_buffers(self, buffers: dict[str, torch.Tensor]) -> None:
        """Write the result of `buffers` into the model."""
        load(self.model, buffers, strict=False)

    @cached_property
    def _fixed(self) -> frozenset[str]:
        return frozenset(norm_statistics(self.model))

    @cached_property
    def _persistent(self) -> dict[str, tuple[torch.dtype, torch.Size]]:
        known, found = persistent_buffers(self.model), tensor_names.buffers(self.model, aliases=True)
        return {name: (value.dtype, value.shape) for name, value in found if name in known}
