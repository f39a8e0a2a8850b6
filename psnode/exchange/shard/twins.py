"""Vectors that have their homes on the host and are computed with on a device, where the newest values are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from psnode.plan.groups import Plan


class Twins:
    """For each of `homes`, flat float32 vectors in the order of `plan`, a twin on `device`.

    Whoever reads homes calls `settle` before, and whoever has written to them `renew`: while no group is open. `before_change` is
    called with a group whose homes are about to change.
    """

    def __init__(self, plan: Plan, homes: Sequence[torch.Tensor], device: torch.device) -> None:
        self._plan, self._homes = plan, homes
        self.vectors = [home.to(device, copy=True) for home in homes]
        self.before_change: Callable[[int], None] = lambda group: None
        self._changed = set[int]()

    def of(self, home: torch.Tensor) -> torch.Tensor:
        """The twin of `home`."""
        return next(there for each, there in zip(self._homes, self.vectors, strict=True) if each is home)

    def change(self, group: int) -> None:
        """The twins have newer values of a group than the homes."""
        self._changed.add(group)

    def settle(self) -> None:
        """Have the newest values in the homes. Waits for what was given to the device."""
        for index in sorted(self._changed):
            self._changed.discard(index)
            self.before_change(index)
            group = self._plan.groups[index]
            for home, there in zip(self._homes, self.vectors, strict=True):
                home[group.start : group.stop] = there[group.start : group.stop].cpu()

    def renew(self) -> None:
        """Have the homes' values in the twins."""
        for home, there in zip(self._homes, self.vectors, strict=True):
            there.copy_(home)
        self._changed.clear()
