"""Steps of the optimizers that psnode itself computes in one pass, for vectors on the host or on a device."""

from __future__ import annotations

from typing import Any, Protocol

from psnode.exchange.update.adam import Moments, adam
from psnode.exchange.update.sgd import descend, descend_beside


class OptimizerSteps(Protocol):
    """Functions like those of psnode.exchange.update.sgd and psnode.exchange.update.adam, for one kind of vectors.

    The vectors are arrays on the host, or tensors on a device.
    """

    def descend(
        self, x: Any, velocity: Any, total: Any, *, factor: float, lr: float, momentum: float, weight_decay: float, nesterov: bool
    ) -> None: ...

    def descend_beside(
        self, x: Any, velocity: Any, total: Any, *, factor: float, lr: float, decay: float, momentum: float, nesterov: bool
    ) -> None: ...

    def adam(
        self, x: Any, mean: Any, square: Any, total: Any, moments: Moments, *, factor: float, lr: float, count: int
    ) -> None: ...


class HostSteps:
    """Steps on NumPy arrays."""

    descend = staticmethod(descend)
    descend_beside = staticmethod(descend_beside)
    adam = staticmethod(adam)
