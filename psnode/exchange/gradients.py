"""Gradients of one backward pass. They stay where torch has put them, unless a caller needs them in one array."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

import torch
from torch import nn

from psnode.codecs.arrays import Floats, Parts
from psnode.codecs.pages import untouched
from psnode.errors import ConfigurationError
from psnode.exchange.fetch import Coming, Fetch, OnDemand, SideStream
from psnode.exchange.segment_coder import Laid
from psnode.plans.groups import Plan


def sparse_gradients(name: str) -> ConfigurationError:
    """Return the error for a parameter whose gradient is not a dense tensor."""
    return ConfigurationError(f"parameter {name} has sparse gradients: use a dense embedding (sparse=False)")


class GradientSource(Laid, Protocol):
    """Gradient of one round, in the form that a sender reads. `Gradients` implements it for rounds of one backward pass."""

    def pieces(self, start: int, stop: int) -> Sequence[tuple[int, torch.Tensor]]:
        """Return pieces like those of `parts`, but as tensors on the device, for gradients that `keep` leaves on it."""

    def absent(self, start: int, stop: int) -> list[int]:
        """Return the indices of the tensors without a gradient, ascending. The loss did not depend on these tensors.

        An index is a tensor's place, from 0, among the tensors with a part in [start, stop), in the order of the plan.
        """

    def keep(self, names: Collection[str]) -> None:
        """From now on, leave the gradients of these parameters on the device."""

    def clear(self) -> None:
        """Release the gradient after it has been sent."""


class Gradients:
    """Store that takes over the gradients of `parameters`, laid out by `plan` as one float32 vector.

    The training thread calls `collect` and `clear`; the coding thread calls the methods that read. With a GPU, `fetch` copies
    each gradient to its position in the vector on the host as soon as the gradient is finished. A reader waits only for the
    gradients in its range.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], plan: Plan, device: torch.device, fetch: Fetch | None = None
    ) -> None:
        self._parameters = parameters
        self._plan = plan
        self._fetch = SideStream(device) if fetch is None and device.type != "cpu" else fetch
        cuda = device.type == "cuda"
        self._host = torch.zeros(plan.size, pin_memory=True) if cuda else torch.from_numpy(untouched(plan.size))
        self._flat: Floats = self._host.numpy()
        self._places = plan.slices()
        self._taken: dict[str, Floats | None] = {}
        self._coming: dict[str, Coming] = {}
        self._stays: frozenset[str] = frozenset()
        self._staying: dict[str, OnDemand] = {}
        self._covers: dict[tuple[int, int], list[str]] = {}

    def collect(self, name: str) -> None:
        """Take a parameter's finished gradient and set its `grad` to None. A missing gradient counts as zeros.

        This is cheaper than a buffer of psnode's own into which torch accumulates. Such a buffer would be cleared before the
        pass, added to, and copied.
        """
        parameter, place = self._parameters[name], self._places[name]
        gradient, parameter.grad = parameter.grad, None
        if gradient is not None and gradient.layout is not torch.strided:
            raise sparse_gradients(name)
        if gradient is None:
            self._taken[name] = None
        elif name in self._stays:
            self._staying[name] = self._coming[name] = OnDemand(gradient.reshape(-1), self._host[place])
            self._taken[name] = self._flat[place]
        elif self._fetch is None:
            self._taken[name] = gradient.reshape(-1).numpy()
        else:
            self._coming[name] = self._fetch(gradient.reshape(-1), self._host[place])
            self._taken[name] = self._flat[place]

    def keep(self, names: Collection[str]) -> None:
        """Leave the gradients of these parameters on the device until they are read on the host."""
        self._stays = frozenset(names)

    def pieces(self, start: int, stop: int) -> list[tuple[int, torch.Tensor]]:
        """Return pieces like those of `parts`, but as tensors on the device, for gradients that stay on it.

        They may be used in work that the calling thread submits to its current CUDA stream.
        """
        found = []
        for name in self._names(start, stop):
            if self._taken[name] is not None:
                place, gradient = self._places[name], self._staying[name].ready()
                low, high = max(start, place.start), min(stop, place.stop)
                found.append((low - start, gradient[low - place.start : high - place.start]))
        return found

    def parts(self, start: int, stop: int) -> Parts:
        """Return the coordinates [start, stop) as pieces, each with its offset from `start`.

        Coordinates in no piece are zeros.
        """
        found = []
        for name in self._names(start, stop):
            if (coming := self._coming.pop(name, None)) is not None:
                coming.synchronize()
            place, gradient = self._places[name], self._taken[name]
            if gradient is not None:
                low, high = max(start, place.start), min(stop, place.stop)
                found.append((low - start, gradient[low - place.start : high - place.start]))
        return found

    def flat(self, start: int, stop: int) -> Floats:
        """Return the coordinates [start, stop) as one array.

        A later call for any of these coordinates may overwrite the array.
        """
        found = self._flat[start:stop]
        for name in self._names(start, stop):
            if self._taken[name] is None:
                self._flat[max(start, self._places[name].start) : min(stop, self._places[name].stop)] = 0
        for place, part in self.parts(start, stop):
            if self._fetch is None:
                found[place : place + part.size] = part
        return found

    def absent(self, start: int, stop: int) -> list[int]:
        """Return the indices of the tensors without a gradient, ascending. The loss did not depend on these tensors.

        An index is a tensor's place, from 0, among the tensors with a part in [start, stop), in the order of the plan.
        """
        return [index for index, name in enumerate(self._names(start, stop)) if self._taken[name] is None]

    def clear(self) -> None:
        """Release the collected gradients."""
        self._taken.clear()
        self._coming.clear()
        self._staying.clear()

    def _names(self, start: int, stop: int) -> list[str]:
        """Return the names of the tensors with a part in [start, stop), in the order of the plan."""
        if (start, stop) not in self._covers:
            self._covers[start, stop] = list(self._plan.covering(start, stop))
        return self._covers[start, stop]
