"""The master's weights x, and the optimizer that moves them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import xxhash
from torch import nn

from psnode.codecs.arrays import Floats
from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.shard.sgd import descend, descend_beside
from psnode.feedback import Gathering
from psnode.plan.groups import Group, Plan
from psnode.records import layout
from psnode.records.layout import Run
from psnode.tasks.inventory import bits

Constraint = Callable[[nn.Module], None]  # Task.constrain
_VELOCITY = "momentum_buffer"  # as torch calls it, and the others
_ADAMS = ("exp_avg", "exp_avg_sq")
_NOTHING = torch.zeros(0)


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
        self._descend: Callable[..., None] | None = None
        self._optimizers: list[torch.optim.Optimizer] = []
        beside = gathering is not None and config.weight_decay != 0
        kept = _ADAMS if config.optimizer != "sgd" else (_VELOCITY,) if momentum or beside else ()
        self._memories = {name: torch.zeros(plan.size) for name in kept}
        self._make = partial(_optimizer, config, momentum)
        if config.optimizer != "sgd":
            self._optimizers = [self._over([_none(group)]) for group in plan.groups]
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
            x, velocity = self.weights.numpy()[where], self._memories.get(_VELOCITY, _NOTHING).numpy()[where]
            for part in _between(idle, total.size):
                self._descend(x[part], velocity[part], total[part], factor=factor, lr=lr)
            for part in idle:
                total[part] = 0
            return
        with self._unmoved(group, idle):
            self._step(group, total, factor, lr)

    @contextlib.contextmanager
    def _unmoved(self, group: int, idle: Sequence[slice]) -> Iterator[None]:
        """Put weights and memories in `idle` back."""
        where = slice(self.plan.groups[group].start, self.plan.groups[group].stop)
        vectors = [vector[where] for vector in (self.weights, *self._memories.values())]
        before = [[vector[part].clone() for part in idle] for vector in vectors]
        yield
        for vector, values in zip(vectors, before, strict=True):
            for part, value in zip(idle, values, strict=True):
                vector[part] = value

    def _step(self, group: int, total: Floats, factor: float, lr: float) -> None:
        gradient = torch.from_numpy(total)
        gradient = gradient.mul_(factor) if factor != 1 else gradient
        optimizer, start = self._optimizers[group], 0
        optimizer.param_groups[0]["lr"] = lr
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad = gradient[start : start + parameter.numel()]
            start += parameter.numel()
        optimizer.step()
        optimizer.zero_grad()
        total[:] = 0

    def _over(self, runs: Sequence[Run]) -> torch.optim.Optimizer:
        """An optimizer for neighbouring `runs` of coordinates, each of which has been updated as often as its value says."""
        ranges = [nn.Parameter(self.weights[run.start : run.stop]) for run in runs]
        optimizer = self._make(ranges)
        for parameter, run in zip(ranges, runs, strict=True):
            memories = {name: vector[run.start : run.stop] for name, vector in self._memories.items()}
            optimizer.state[parameter] = {layout.STEP: torch.tensor(float(run.value)), **memories}
        return optimizer

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
        """The optimizer's memories, named by memory and tensor (psnode.records.layout): views but for the counts of steps."""
        places = layout.places(self.plan)
        found = {f"{name}/{key}": vector[where] for name, vector in self._memories.items() for key, where in places.items()}
        runs, start = [], 0
        for optimizer in self._optimizers:
            for parameter in optimizer.param_groups[0]["params"]:
                runs.append(Run(start, start + parameter.numel(), optimizer.state[parameter][layout.STEP].item()))
                start = runs[-1].stop
        counts = layout.spread(self.plan, runs, torch.float32)
        return found | {f"{layout.STEP}/{key}": value for key, value in counts.items()}

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
        self._load_memories(optimizer)

    def _load_memories(self, optimizer: dict[str, torch.Tensor]) -> None:
        """A memory that is lacking altogether, of a run that was never updated, stays as it is."""
        places = layout.places(self.plan)
        for key, value in optimizer.items():
            name, _, tensor = key.partition("/")
            where = places.get(tensor, slice(0, 0))
            if name == layout.STEP and self._optimizers and tensor in places:
                continue
            if name not in self._memories or value.dim() != 1 or value.numel() != where.stop - where.start or not value.numel():
                raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {key[:200]}")
            self._memories[name][where] = value
        if lacking := [key for key in self.state() if optimizer and key not in optimizer]:
            raise CheckpointError(f"the checkpoint's optimizer does not fit this run's: {lacking[0][:200]} is missing")
        if self._optimizers:
            runs = layout.collected(self.plan, optimizer, f"{layout.STEP}/")
            self._optimizers = [self._over(layout.within(runs, group) or [_none(group)]) for group in self.plan.groups]


def _between(idle: Sequence[slice], size: int) -> list[slice]:
    """The ranges of 0..size-1 that `idle`, in ascending order, leaves."""
    edges = [0, *(edge for part in idle for edge in (part.start, part.stop)), size]
    return [slice(start, stop) for start, stop in zip(edges[::2], edges[1::2], strict=True) if start < stop]


def _none(group: Group) -> Run:
    """No updates of a group so far."""
    return Run(group.start, group.stop, 0)


def _optimizer(config: Config, momentum: float, ranges: list[nn.Parameter]) -> torch.optim.Optimizer:
    common: dict[str, Any] = {"lr": config.lr, "weight_decay": config.weight_decay, "foreach": False}
    kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
    return kind(ranges, betas=(momentum, 0.999), **common)
