"""The master's weights x, and the torch optimizer that moves them."""

from __future__ import annotations

from typing import Any

import torch
import xxhash
from torch import nn

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.plan import Plan


class Parameters:
    """x as one flat float32 vector in the order of the plan; `model`'s trainable parameters become views of it.

    Every group has an optimizer of its own over its range, so that groups can be updated apart from each other.
    All of torch's optimizers that are offered work coordinate by coordinate: the grouping does not matter.
    """

    def __init__(self, model: nn.Module, plan: Plan, config: Config, momentum: float) -> None:
        self.model = model
        self.plan = plan
        self.weights = torch.empty(plan.size)
        named = dict(model.named_parameters())
        for name, where in plan.slices().items():
            parameter = named[name]
            self.weights[where] = parameter.detach().reshape(-1)
            parameter.data = self.weights[where].view(parameter.shape)
        self._ranges = [nn.Parameter(self.weights[group.start : group.stop]) for group in plan.groups]
        self._optimizers = [_optimizer(config, parameter, momentum) for parameter in self._ranges]

    def update(self, group: int, gradient: torch.Tensor, lr: float) -> None:
        """One optimizer step on a group's weights; `gradient` is flat float32 of the group's size."""
        optimizer = self._optimizers[group]
        optimizer.param_groups[0]["lr"] = lr
        self._ranges[group].grad = gradient
        optimizer.step()
        self._ranges[group].grad = None

    def digest(self) -> str:
        """xxh3_128 of the parameters' float32 bytes in state-dict order."""
        state = xxhash.xxh3_128()
        for _, parameter in self.model.named_parameters():
            state.update(parameter.detach().contiguous().numpy().data)
        return state.hexdigest()

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizers' memories, named by group and memory."""
        return {
            f"{index}/{name}": value
            for index, (optimizer, parameter) in enumerate(zip(self._optimizers, self._ranges, strict=True))
            for name, value in optimizer.state[parameter].items()
            if isinstance(value, torch.Tensor)
        }

    def load(self, weights: dict[str, torch.Tensor], optimizer: dict[str, torch.Tensor]) -> None:
        """Put the contents of model.safetensors and of `state` in place. CheckpointError if they do not fit."""
        expected = self.model.state_dict()
        for name, value in expected.items():
            if name not in weights or weights[name].shape != value.shape:
                raise CheckpointError(f"the checkpoint's model does not fit this network: {name} is missing or of another shape")
        if unknown := sorted(set(weights) - set(expected)):
            raise CheckpointError(f"the checkpoint's model does not fit this network: {unknown[0]} is unknown")
        with torch.no_grad():
            for name, value in expected.items():
                value.copy_(weights[name])
        for key, value in optimizer.items():
            index, _, name = key.partition("/")
            if not index.isdecimal() or int(index) >= len(self._ranges):
                raise CheckpointError(f"the checkpoint's optimizer does not fit the plan: {key}")
            parameter = self._ranges[int(index)]
            self._optimizers[int(index)].state[parameter][name] = value.clone()


def _optimizer(config: Config, parameter: nn.Parameter, momentum: float) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "foreach": False}
    if config.optimizer == "sgd":
        return torch.optim.SGD([parameter], momentum=momentum, nesterov=config.nesterov, **common)
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind([parameter], betas=(momentum, 0.999), **common)
