"""The gradients of one backward pass: left where torch put them, unless somebody needs them side by side."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from psnode.codecs.base import Parts
from psnode.plan import Plan

Floats = npt.NDArray[np.float32]


class Gradients:
    """Takes over the gradients of `parameters`, which `plan` lays out as one vector of float32.

    `collect` belongs to the thread that trains, `parts` and `flat` to the one that codes. On a GPU gradients are put
    side by side there, and fetched range by range.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], plan: Plan, device: torch.device) -> None:
        self._parameters = parameters
        self._on_host = device.type == "cpu"
        self._host = torch.zeros(plan.size, pin_memory=not self._on_host)
        self._flat: Floats = self._host.numpy()
        self._there = self._host if self._on_host else torch.zeros(plan.size, device=device)
        self._places = plan.slices()
        self._taken: dict[str, Floats | None] = {}
        self._covers: dict[tuple[int, int], list[str]] = {}

    def collect(self, name: str) -> None:
        """Take over a parameter's finished gradient, from which it parts; zeros if it has none.

        Cheaper than having torch accumulate in memory of ours: nothing is zeroed before the pass, added to, or copied.
        """
        parameter = self._parameters[name]
        gradient, parameter.grad = parameter.grad, None
        if self._on_host:
            self._taken[name] = None if gradient is None else gradient.reshape(-1).numpy()
        elif gradient is None:
            self._there[self._places[name]].zero_()
        else:
            self._there[self._places[name]].copy_(gradient.reshape(-1))

    def parts(self, start: int, stop: int) -> Parts:
        """Coordinates [start, stop) of the vector in pieces, each with its place behind `start`; the others are zeros."""
        if not self._on_host:
            return [(0, self.flat(start, stop))]
        found = []
        for name in self._names(start, stop):
            place, gradient = self._places[name], self._taken[name]
            if gradient is not None:
                low, high = max(start, place.start), min(stop, place.stop)
                found.append((low - start, gradient[low - place.start : high - place.start]))
        return found

    def flat(self, start: int, stop: int) -> Floats:
        """The same as one array, which is valid until it is asked for again."""
        found = self._flat[start:stop]
        if not self._on_host:
            self._host[start:stop].copy_(self._there[start:stop])
            return found
        if any(self._taken[name] is None for name in self._names(start, stop)):
            found[:] = 0
        for place, part in self.parts(start, stop):
            found[place : place + part.size] = part
        return found

    def clear(self) -> None:
        """Let go of what was collected."""
        self._taken.clear()

    def _names(self, start: int, stop: int) -> list[str]:
        """The tensors that have a part in a range."""
        if (start, stop) not in self._covers:
            self._covers[start, stop] = [
                name for name, place in self._places.items() if place.start < stop and start < place.stop
            ]
        return self._covers[start, stop]
