"""Adam and AdamW in one pass (psnode.exchange.update.adam), over the ranges of groups and parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from psnode.exchange.update.adam import Moments
from psnode.exchange.update.torch_updates import TorchUpdate
from psnode.exchange.update.updates import ParamGroup, Stretch, moving
from psnode.plans.groups import Plan

_EPS = 1e-8  # torch's default


class AdamUpdate(TorchUpdate):
    """Update by Adam or AdamW in one pass, without options of torch's optimizers.

    The state is the same as in torch's optimizers.
    """

    in_one_pass = True

    def __init__(
        self, weights: torch.Tensor, plan: Plan, param_groups: Sequence[ParamGroup], parts: Mapping[int, Sequence[Stretch]]
    ) -> None:
        super().__init__(weights, plan, param_groups, parts)
        self._moments = [_moments(param_group) for param_group in param_groups]

    def step(self, group: int, total: Any, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """Take a step on a group. Its `idle` ranges do not change, but the step is included in their step counts."""
        optimizer, ranges, begin = self.optimizers[group], self.ranges[group], self.groups[group].start
        x, mean, square = self.vectors()
        for each in ranges if optimizer is not None else ():
            optimizer.state[each.parameter]["step"] += 1  # type: ignore[union-attr]
        for each, part in moving(begin, len(total), ranges, idle):
            where, rate = slice(begin + part.start, begin + part.stop), lr * self.param_groups[each.param_group].factor
            count = int(optimizer.state[each.parameter]["step"])  # type: ignore[union-attr]
            moments = self._moments[each.param_group]
            self.steps.adam(x[where], mean[where], square[where], total[part], moments, factor=factor, lr=rate, count=count)
        for part in idle:
            total[part] = 0


def _moments(param_group: ParamGroup) -> Moments:
    config = param_group.config
    eps = _EPS if config.eps is None else config.eps
    return Moments(param_group.momentum, config.beta2, eps, config.weight_decay, config.optimizer == "adamw")
