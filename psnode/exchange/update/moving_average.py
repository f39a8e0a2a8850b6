"""Moving average of the weights, for evaluation."""

from __future__ import annotations

import torch

from psnode.errors import CheckpointError
from psnode.plans.groups import Plan
from psnode.records import state_names

Tensors = dict[str, torch.Tensor]


class MovingAverage:
    """Exponential moving average of x, flat in the order of the plan: decay * average + (1 - decay) * x after every version.

    The average begins as a copy of the first version, as in torch.optim.swa_utils.AveragedModel with
    get_ema_multi_avg_fn(decay). Several threads may call `move` at the same time for different groups.
    """

    def __init__(self, weights: torch.Tensor, plan: Plan, decay: float) -> None:
        self._weights, self._plan, self._decay = weights, plan, decay
        self._average = weights.clone()
        self._places = {group.index: slice(group.start, group.stop) for group in plan.groups}
        self._begun = set[int]()

    def move(self, group: int) -> None:
        """Update the averages of a group. Call this when a version of the group is complete."""
        where = self._places[group]
        if group in self._begun:
            self._average[where].lerp_(self._weights[where], 1 - self._decay)
        else:
            self._average[where] = self._weights[where]
            self._begun.add(group)

    def memory(self, group: int) -> torch.Tensor:
        """Return the averages of a group. `move` changes this tensor."""
        return self._average[self._places[group]]

    @property
    def vector(self) -> torch.Tensor:
        """The averages, flat in the order of the plan."""
        return self._average

    def load(self, tensors: Tensors) -> None:
        """Load averages, by the names of tensors. Raises CheckpointError if they do not fit."""
        for name, where in state_names.places(self._plan).items():
            if name not in tensors or tensors[name].numel() != where.stop - where.start:
                raise CheckpointError(f"the checkpoint's moving average does not fit this network: {name}")
            self._average[where] = tensors[name].reshape(-1)
        self._begun = set(self._places)
