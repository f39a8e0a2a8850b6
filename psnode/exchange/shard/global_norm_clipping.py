"""Clipping by the global norm: the mean gradient of all groups together is scaled to a norm of at most `bound`.

The norm is known when the sum of the last group is; no weight moves before. The factor is that of torch.nn.utils.clip_grad_norm_:

    min(1, bound / (norm + 1e-6))

Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, algorithm 1.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.dots import inner_products
from psnode.records.history import Added

_EPSILON = 1e-6


class Summed(NamedTuple):
    """The sum of a closed round: the pushes in it, the factor that makes it the gradient, and its ranges without a gradient."""

    added: tuple[Added, ...]
    factor: float
    idle: list[slice]


class GlobalNorm:
    """Keeps the sums of the groups until all are there. Lanes may call it side by side; one version at a time.

    `norm`: L2 norm of the last mean gradient before it was clipped, nan before the first.
    """

    def __init__(self, bound: float, groups: int) -> None:
        self.norm = math.nan
        self._bound = bound
        self._groups = groups
        self._lock = threading.Lock()
        self._found: dict[int, tuple[Summed, float]] = {}

    def offer(self, group: int, gradient: Floats, summed: Summed) -> dict[int, Summed]:
        """Take the sum of a group; returns those of all groups, clipped, once the last one is there."""
        square = summed.factor**2 * inner_products(gradient, gradient)[1]
        with self._lock:
            self._found[group] = summed, square
            if len(self._found) < self._groups:
                return {}
            found, self._found = self._found, {}
        self.norm = math.sqrt(sum(found[index][1] for index in sorted(found)))
        clip = min(1.0, self._bound / (self.norm + _EPSILON))
        return {index: each._replace(factor=each.factor * clip) for index, (each, _) in found.items()}
