"""Weights x of the groups of a plan, and the optimizer that updates them."""

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
from psnode.feedback import MomentumRule
from psnode.plans.groups import Plan
from psnode.tasks.parameter_groups import ParameterGroup


class Parameters:
    """Weights x of a plan's groups with their optimizer. x is `weights`: flat float32 on the host, in the order of the plan.

    Each group is updated separately, with the settings of the `parameter_groups` to which its tensors belong. Optimizers work
    coordinate by coordinate or tensor by tensor; those of the task, `own_optimizer` (Task.optimizer), always work tensor by
    tensor. `gathering`: the momentum that has gathered gradients at the senders. SGD's weight decay is gathered here with the
    same momentum.
    """

    def __init__(
        self,
        weights: torch.Tensor,
        plan: Plan,
        config: Config,
        momentum: float,
        gathering: MomentumRule | None = None,
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
        """True if psnode's own code takes the steps, so that a device can update the weights as the host does."""
        return self._update.in_one_pass

    @property
    def has_own_sgd(self) -> bool:
        """True if the task's own optimizer of any tensor is torch's SGD or ASGD."""
        return isinstance(self._update, WholeUpdate) and self._update.has_own_sgd

    @property
    def vectors(self) -> tuple[torch.Tensor, ...]:
        """The weights, and the optimizer's memories that have one value per coordinate. Each is flat in the order of the plan."""
        return (self.weights, *self._update.memories.values())

    def move_to(self, steps: OptimizerSteps, device_copies: DeviceCopies) -> None:
        """From now on, update the `device_copies` of `vectors` with `steps`. This is allowed only if `in_one_pass` is True."""
        self._update.move_to(steps, device_copies)

    def update(self, group: int, total: Any, factor: float, lr: float, idle: Sequence[slice] = ()) -> None:
        """Take one optimizer step on a group's weights with the gradient factor * `total`. Then set `total` to 0.

        `total`: float32, flat, on the same device as the updated weights. `lr`: the learning rate, without the factors of
        parameter groups. `idle`: ranges of the group without a gradient, ascending. Their weights and memories do not change,
        even with weight decay or momentum.
        """
        self._update.step(group, total, factor, lr, idle)

    def state(self) -> dict[str, torch.Tensor]:
        """Return views of the optimizer's memories, and copies of step counts, by memory and tensor (records.state_names)."""
        return self._update.state()

    def memory(self, group: int) -> list[torch.Tensor]:
        """Return the tensors that an update of a group changes: x and the optimizer's memories."""
        return self._update.memory(group)

    def load(self, optimizer: dict[str, torch.Tensor]) -> None:
        """Load the result of `state`. Raises CheckpointError if it does not fit."""
        self._update.load(optimizer)
