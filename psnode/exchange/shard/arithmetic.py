"""Arithmetic of a shard: the sums of its groups, and the optimizer's steps on them, in the host's memory or on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.base import RandomSource
from psnode.codecs.kernels.finite import all_finite
from psnode.exchange.shard.aggregator import Aggregator
from psnode.exchange.shard.pushes import MeasuredPayload
from psnode.exchange.update.parameters import Parameters
from psnode.plans.groups import Group, Plan, Segment


class Arithmetic(Protocol):
    """Sums of all groups, which begin with zeros, and optimizer steps. Lanes call it, only one thread at a time for a group.

    The gradient of a group is its sum times a factor.
    """

    def add(self, part: MeasuredPayload, weight: float) -> None:
        """Add the decoded payload of one segment of a push, times `weight`, to the sum."""

    def add_payload(self, segment: Segment, payload: Payload, weight: float) -> None:
        """Add a decoded payload, which was not measured before, times `weight`, to the sum. Raises CodecError."""

    def total(self, group: Group) -> Floats:
        """Return the group's sum on the host. The caller must not change it."""

    def is_finite(self, group: Group) -> bool:
        """Return True if all values of the group's sum are finite."""

    def is_zero(self, group: Group, where: slice) -> bool:
        """Return True if the coordinates `where` of the group's sum are all 0."""

    def finish(self, group: Group, count: float, rng: RandomSource) -> float:
        """Turn the sum of `count` gradients into a multiple of the gradient to apply. Return the factor for this multiple."""

    def clear(self, group: Group) -> None:
        """Set the group's sum to 0."""

    def update(self, group: Group, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """Take one optimizer step on the group with the gradient factor * sum, then set the sum to 0. See Parameters.update."""


class HostArithmetic:
    """Sums in the host's memory. `codecs`: by segment, the codec of pushes."""

    def __init__(self, plan: Plan, codecs: Sequence[Codec], aggregator: Aggregator, parameters: Parameters) -> None:
        self._codecs, self._aggregator, self._parameters = codecs, aggregator, parameters
        self._sum = np.zeros(plan.size, np.float32)

    def add(self, part: MeasuredPayload, weight: float) -> None:
        segment, payload, measured = part
        self._aggregator.add_measured(self._codecs[segment.index], payload, measured, self._of(segment), weight)

    def add_payload(self, segment: Segment, payload: Payload, weight: float) -> None:
        self._aggregator.add(self._codecs[segment.index], payload, self._of(segment), weight)

    def total(self, group: Group) -> Floats:
        return self._of(group)

    def is_finite(self, group: Group) -> bool:
        return all_finite(self._of(group))

    def is_zero(self, group: Group, where: slice) -> bool:
        return not self._of(group)[where].any()

    def finish(self, group: Group, count: float, rng: RandomSource) -> float:
        return self._aggregator.finish(self._of(group), count, rng)

    def clear(self, group: Group) -> None:
        self._of(group)[:] = 0

    def update(self, group: Group, factor: float, lr: float, idle: Sequence[slice]) -> None:
        self._parameters.update(group.index, self._of(group), factor, lr, idle)

    def _of(self, part: Group | Segment) -> Floats:
        return self._sum[part.start : part.stop]
