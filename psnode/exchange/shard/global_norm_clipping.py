"""Clipping by the global norm: the mean gradient of all groups together is scaled to a norm of at most `bound`.

The factor is that of torch.nn.utils.clip_grad_norm_:

    min(1, bound / (norm + 1e-6))

Pascanu, Mikolov, Bengio, "On the difficulty of training recurrent neural networks", ICML 2013, algorithm 1. The norm is known
only when all groups are summed, so no weight is updated before that. Alternatively, the norm of the previous version serves as
an estimate. It is known before the first group is summed, so groups need not wait for each other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import NamedTuple

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.dots import inner_products
from psnode.errors import CheckpointError
from psnode.records.history import AddedGradient

_EPSILON = 1e-6
GRADIENT_NORM = "gradient_norm"  # key of the estimate in a checkpoint's manifest


class Summed(NamedTuple):
    """Completed sum of the gradients of one group in a round.

    `added`: the pushes in the sum; `factor`: the factor that turns the sum into the mean gradient; `idle`: ranges of the group
    without a gradient.
    """

    added: tuple[AddedGradient, ...]
    factor: float
    idle: list[slice]


class GlobalNorm:
    """Norm of all groups together, and clipping by this norm. Lanes may call it concurrently, for one version at a time.

    `estimated`: True to clip by the norm of the last version that had a gradient. Without such a version, the version's own
    norm is used. `norm`: L2 norm of the last mean gradient before clipping, nan before the first version.
    """

    def __init__(self, bound: float, groups: int, *, estimated: bool = False) -> None:
        self.norm = math.nan
        self._bound = bound
        self._groups = groups
        self._estimated = estimated
        self._estimate: float | None = None
        self._lock = threading.Lock()
        self._found: dict[int, tuple[Summed, float]] = {}

    def offer(self, group: int, gradient: Floats, summed: Summed) -> dict[int, Summed]:
        """Take the sum of a group. Return the clipped sums, by group, of the groups that can be updated now.

        With an estimate of the norm this is only the offered group. Without an estimate, the call for the version's last group
        returns all groups, and earlier calls return no groups.
        """
        square = summed.factor**2 * inner_products(gradient, gradient)[1]
        with self._lock:
            estimate = self._estimate
            self._found[group] = summed, square
            found = {group: summed} if estimate is not None else {}
            if len(self._found) == self._groups:
                self.norm = math.sqrt(sum(self._found[index][1] for index in sorted(self._found)))
                self._note(self._found)
                found = found or {index: each for index, (each, _) in self._found.items()}
                if self._estimated and any(each.added for each, _ in self._found.values()):
                    self._estimate = self.norm
                self._found = {}
        return self._clipped(found, self.norm if estimate is None else estimate)

    def _note(self, found: Mapping[int, tuple[Summed, float]]) -> None:
        """Do nothing.

        Subclasses may use the call: `offer` passes the sums and squared norms of all groups when a norm is known.
        """

    def _clipped(self, found: Mapping[int, Summed], norm: float) -> dict[int, Summed]:
        """Return the sums with new factors: each is clipped for a gradient whose global norm is `norm`."""
        clip = min(1.0, self._bound / (norm + _EPSILON))
        return {index: each._replace(factor=each.factor * clip) for index, each in found.items()}

    def facts(self) -> dict[str, float]:
        """Return, for a checkpoint's manifest, the estimate for the next version, if any. Call this while no group is open."""
        return {} if self._estimate is None else {GRADIENT_NORM: self._estimate}

    def take_up(self, facts: Mapping[str, object]) -> None:
        """Continue from the facts of a checkpoint. Raises CheckpointError if the estimate is not valid."""
        found = facts.get(GRADIENT_NORM)
        if found is None or not self._estimated:
            return
        if not isinstance(found, (int, float)) or isinstance(found, bool) or not 0 <= found < math.inf:
            raise CheckpointError(f"the checkpoint's {GRADIENT_NORM} is {str(found)[:60]}, no norm")
        self._estimate = float(found)
