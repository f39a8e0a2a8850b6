"""Weights x of the groups of a plan, and the optimizer that moves them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from psnode.config import Config
from psnode.exchange.update.adam import in_one_pass
from psnode.exchange.update.adam_update import AdamUpdate
from psnode.exchange.update.device_copies import DeviceCopies
from psnode.exchange.update.optimizer_steps import OptimizerSteps
from psnode.exchange.update.torch_updates import TorchUpdate
from psnode.exchange.update.updates import Descent, ParamGroup, Update, stretches
from psnode.exchange.update.whole_updates import MakeOptimizer, WholeUpdate
from psnode.feedback import Gathering
from psnode.plan.groups import Plan
from psnode.tasks.parameter_groups import ParameterGroup


class Parameters:
    """x is `weights`: given, flat float32, on the host, in the order of the plan.

    Groups are updated apart from each other, each by the settings of the `parameter_groups` that its tensors belong to: the
    optimizers work coordinate by coordinate, or tensor by tensor, as `own_optimizer` (Task.optimizer) does. `gathering`: the
    momentum that the senders have gathered their gradients into, which SGD's weight decay then has here.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        plan: Plan,
        config: Config,
        momentum: float,
        gathering: Gathering | None = None,
        parameter_groups: Sequence[ParameterGroup] = (),
        own_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self.weights = weights
        self.plan = plan
        param_groups = [ParamGroup(config, momentum)]
        of_tensors: dict[str, int] = {}
        for group in parameter_groups:
            of_tensors |= dict.fromkeys(group.names, len(param_groups))
            param_groups.append(ParamGroup(group.config(config), group.settings.get("momentum", momentum), group.lr_factor))
        self._update: Update
        if config.whole_tensors:
            self._update = WholeUpdate(self.weights, plan, param_groups, of_tensors, own_optimizer)
        elif config.optimizer == "sgd":
            self._update = Descent(self.weights, plan, param_groups, stretches(plan, of_tensors), gathering)
        else:
            kind = AdamUpdate if in_one_pass(config) else TorchUpdate
            self._update = kind(self.weights, plan, param_groups, stretches(plan, of_tensors))

    @property
    def in_one_pass(self) -> bool:
        """True if a device can move the weights as the host does."""
        return self._update.in_one_pass

    @property
    def vectors(self) -> tuple[torch.Tensor, ...]:
        """Weights and the optimizer's memories of coordinates, each flat in the order of the plan."""
        return (self.weights, *self._update.memories.values())

    def move_to(self, steps: OptimizerSteps, device_copies: DeviceCopies) -> None:
        """Have `device_copies` of `vectors` moved by `steps` from now on, if it can be done `in_one_pass`."""
        self._update.move_to(steps, device_copies)

    def update(self, group: int, total: Any, factor: float, lr: float, idle: Sequence[slice] = ()) -> None:
        """One optimizer step on a group's weights with the gradient factor * `total`; clears `total` (float32, flat,
        and where the weights are that it moves).

        `lr`: before the factors of parameter groups. The ranges of the group that are `idle`, in ascending order, have no
        gradient: weights and memories there stay, also where weight decay or momentum would move them.
        """
        self._update.step(group, total, factor, lr, idle)

    def state(self) -> dict[str, torch.Tensor]:
        """The optimizer's memories, named by memory and tensor (psnode.records.state_names): views, except the step counts."""
        return self._update.state()

    def memory(self, group: int) -> list[torch.Tensor]:
        """The memory that an update of a group changes: x and the optimizer's memories."""
        return self._update.memory(group)

    def load(self, optimizer: dict[str, torch.Tensor]) -> None:
        """Put the contents of `state` in place. CheckpointError if they do not fit."""
        self._update.load(optimizer)
