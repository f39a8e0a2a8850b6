"""Weights x of some groups of a plan, by the names of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
import xxhash
from torch import nn

from psnode.errors import CheckpointError, ConfigurationError
from psnode.plans.groups import Plan
from psnode.plans.part import PlanPart
from psnode.records import state_names
from psnode.tasks.model_tensors import bits

Tensors = dict[str, torch.Tensor]
Constraint = Callable[[nn.Module], None]  # Task.constrain
Newest = Callable[[torch.Tensor], torch.Tensor]  # returns the newest values of a view, see DeviceCopies.copies


def unchanged(view: torch.Tensor) -> torch.Tensor:
    """Return `view` itself. This is right if no device has newer values."""
    return view


class Weights(Protocol):
    """Weights x. `vector` holds them: float32 on the host, flat in the order of a plan."""

    @property
    def vector(self) -> torch.Tensor: ...

    def constrain(self, constraint: Constraint) -> None:
        """Call `constraint` on the model.

        The constraint may change the model's weights in place, or replace a parameter's data by other data of the same shape
        and dtype.
        """

    def digest(self, newest: Newest = unchanged) -> str:
        """Return xxh3_128 of the bytes of all weights. In a model these include frozen weights."""

    def state(self, vector: torch.Tensor | None = None) -> Tensors:
        """Return tensors for a checkpoint, by name: trained tensors, as views of `vector` (by default x), and all others."""

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`. Raises CheckpointError if it does not fit."""


class WeightsWithoutModel:
    """Weights without a model: only the trained tensors of `plan`, in one flat vector.

    `vector` must already hold the values.
    """

    def __init__(self, plan: Plan, vector: torch.Tensor) -> None:
        self.vector = vector
        self._places = state_names.places(plan)

    @classmethod
    def of(cls, part: PlanPart, whole: torch.Tensor) -> WeightsWithoutModel:
        """Return a copy of the weights of `part`. `whole`: the weights of all groups of the plan."""
        groups = [part.whole.groups[index] for index in part.groups]
        return cls(part.own, torch.cat([whole[group.start : group.stop] for group in groups]))

    def constrain(self, constraint: Constraint) -> None:
        """Raise ConfigurationError, since a constraint needs a model."""
        raise ConfigurationError("Task.constrain needs the whole model where weights are updated")

    def digest(self, newest: Newest = unchanged) -> str:
        """Return the xxh3_128 of the bytes of x, in the order of the plan."""
        return xxhash.xxh3_128_hexdigest(bits(newest(self.vector)))

    def state(self, vector: torch.Tensor | None = None) -> Tensors:
        """Return the tensors of the plan, by name, as flat views of `vector` (by default x)."""
        held = self.vector if vector is None else vector
        return {name: held[where] for name, where in self._places.items()}

    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`, where tensors may have any shape. Raises CheckpointError if it does not fit."""
        for name, view in self.state().items():
            if name not in tensors or tensors[name].numel() != view.numel():
                raise CheckpointError(f"the checkpoint's model does not fit this network: {name} is missing or of another size")
            view.copy_(tensors[name].reshape(-1))
