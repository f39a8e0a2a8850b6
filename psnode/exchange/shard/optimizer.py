"""The master's weights x, and the optimizer that moves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from torch import nn

from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.shard.sgd import descend, descend_beside
from psnode.feedback import Gathering
from psnode.plan.groups import Plan
from psnode.tasks.inventory import bits

Floats = npt.NDArray[np.float32]
Constraint = Callable[[nn.Module], None]  # Task.constrain
_VELOCITY = "momentum_buffer"  # as torch calls it


class Parameters:
    """x as one flat float32 vector in the order of the plan; `model`'s trainable parameters become views of it.

    Groups are updated apart from each other: all optimizers that are offered work coordinate by coordinate. SGD is
    psnode's own, with torch's results (psnode.exchange.shard.sgd); the others are torch's, one a group over its range.
    `gathering`: the momentum that the senders have gathered their gradients into, which SGD's weight decay then has here.
    """

    def __init__(self, model: nn.Module, plan: Plan, config: Config, momentum: float, gathering: Gathering | None = None) -> None:
        self.model = model
        self.plan = plan
        self.weights = torch.empty(plan.size)
        named = dict(model.named_parameters())
        self._views: list[tuple[str, nn.Parameter, torch.Tensor]] = []
        for name, where in plan.slices().items():
            parameter = named[name]
            self.weights[where] = parameter.detach().reshape(-1)
            parameter.data = self.weights[where].view(parameter.shape)
            self._views.append((name, parameter, parameter.data))
        self._ranges = [nn.Parameter(self.weights[group.start : group.stop]) for group in plan.groups]
        self._descend: Callable[..., None] | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        beside = gathering is not None and config.weight_decay != 0
        self._velocity = torch.zeros(plan.size if config.optimizer == "sgd" and (momentum or beside) else 0)
        if config.optimizer != "sgd":
            self._optimizers = [_optimizer(config, parameter, momentum) for parameter in self._ranges]
        elif gathering is not None and beside:
            decay = gathering.gain * config.weight_decay
            self._descend = partial(descend_beside, decay=decay, momentum=gathering.momentum, nesterov=gathering.nesterov)
        else:
            self._descend = partial(descend, momentum=momentum, weight_decay=config.weight_decay, nesterov=config.nesterov)

    def update(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice] = ()) -> None:
        """One optimizer step on a group's weights with the gradient factor * `total`; clears `total` (float32, flat).

        The ranges of the group that are `idle`, in ascending order, have no gradient: weights and memories there stay, also
        where weight decay or momentum would move them. Adam's count of steps is the group's.
        """
        if self._descend is not None:
            where = slice(self.plan.groups[group].start, self.plan.groups[group].stop)
            x, velocity = self.weights.numpy()[where], self._velocity.numpy()[where]
            for part in _between(idle, total.size):
                self._descend(x[part], velocity[part], total[part], factor=factor, lr=lr)
            for part in idle:
                total[part] = 0
            return
        with self._unmoved(group, idle):
            self._step(group, total, factor, lr)

    @contextlib.contextmanager
    def _unmoved(self, group: int, idle: Sequence[slice]) -> Iterator[None]:
        """Put weights and memories in `idle` back to what they were; memories that are new there begin with zeros."""
        parameter, state = self._ranges[group], self._optimizers[group].state[self._ranges[group]]
        weights = [parameter.detach()[part].clone() for part in idle]
        before = {name: [value[part].clone() for part in idle] for name, value in state.items() if value.dim()}
        yield
        for index, part in enumerate(idle):
            parameter.detach()[part] = weights[index]
            for name, value in state.items():
                if value.dim():
                    value[part] = before[name][index] if name in before else 0

    def _step(self, group: int, total: Floats, factor: float, lr: float) -> None:
        gradient = torch.from_numpy(total)
        optimizer = self._optimizers[group]
        optimizer.param_groups[0]["lr"] = lr
        self._ranges[group].grad = gradient.mul_(factor) if factor != 1 else gradient
        optimizer.step()
        self._ranges[group].grad = None
        total[:] = 0

    def constrain(self, constraint: Constraint) -> None:
        """Let `constraint` change the model's weights, in place or by giving a parameter other data of its shape."""
        with torch.no_grad():
            constraint(self.model)
        for name, parameter, view in self._views:
            if parameter.data_ptr() != view.data_ptr() or parameter.stride() != view.stride():
                if parameter.shape != view.shape or parameter.dtype is not view.dtype:
                    raise ConfigurationError(
                        f"Task.constrain makes parameter {name} {tuple(parameter.shape)} of {parameter.dtype}: it must stay "
                        f"{tuple(view.shape)} of {view.dtype}"
                    )
                view.copy_(parameter.detach())
                parameter.data = view

    def digest(self) -> str:
        """xxh3_128 of the bytes of all parameters, frozen ones too, in state-dict order."""
        state = xxhash.xxh3_128()
        for _, parameter in self.model.named_parameters():
            state.update(bits(parameter))
        return state.hexdigest()

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizers' memories, named by group and memory."""
        if self._velocity.numel():
            return {f"{group.index}/{_VELOCITY}": self._velocity[group.start : group.stop] for group in self.plan.groups}
        return {
            f"{index}/{name}": value
            for index, (optimizer, parameter) in enumerate(zip(self._optimizers, self._ranges, strict=False))
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
            group = self.plan.groups[int(index)]
            if self._optimizers:
                self._optimizers[group.index].state[self._ranges[group.index]][name] = value.clone()
            elif name == _VELOCITY and self._velocity.numel() and value.numel() == group.size:
                self._velocity[group.start : group.stop] = value
            else:
                raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {key}")


def _between(idle: Sequence[slice], size: int) -> list[slice]:
    """The ranges of 0..size-1 that `idle`, in ascending order, leaves."""
    edges = [0, *(edge for part in idle for edge in (part.start, part.stop)), size]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _optimizer(config: Config, parameter: nn.Parameter, momentum: float) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "foreach": False}
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind([parameter], betas=(momentum, 0.999), **common)
