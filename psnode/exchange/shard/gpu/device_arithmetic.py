"""Sums of a shard on a device. Payloads are added there, and the optimizer updates the weights there."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.base import RandomSource
from psnode.codecs.device.protocols import Change
from psnode.errors import PayloadError
from psnode.exchange.shard.aggregator import Mean
from psnode.exchange.shard.pushes import MeasuredPayload
from psnode.exchange.update.device_copies import told
from psnode.exchange.update.parameters import Parameters
from psnode.plans.groups import Group, Plan, Segment

_NOTHING = np.empty(0, np.float32)


class DeviceArithmetic:
    """Arithmetic on the device that holds the copies of weights and memories. Its results equal the host's, bit for bit.

    `parameters` updates the weights. `changes`: by segment's number, the changes of segments whose payloads are decoded on the
    device. Payloads of other segments, and payloads added with a weight other than 1, are decoded on the host. Their values
    are then copied to the device. The host has already checked and measured each push. If a codec's scales bound the norm, it
    has measured only the scales.
    """

    def __init__(
        self,
        plan: Plan,
        codecs: Sequence[Codec],
        aggregator: Mean,
        parameters: Parameters,
        total: torch.Tensor,
        changes: Mapping[int, Change],
    ) -> None:
        self._codecs, self._aggregator, self._parameters = codecs, aggregator, parameters
        self._total, self._changes = total, changes

    @told
    def add(self, part: MeasuredPayload, weight: float) -> None:
        self.add_payload(part.segment, part.payload, weight)

    @told
    def add_payload(self, segment: Segment, payload: Payload, weight: float) -> None:
        change = self._changes.get(segment.index)
        if change is not None and weight == 1:
            with contextlib.suppress(PayloadError):  # e.g. a payload with other parameters, which the host accepts
                change.add(payload)
                return
        decoded = self._codecs[segment.index].decode(payload).reshape(-1)
        if weight != 1:
            decoded *= np.float32(weight)
        self._of(segment).add_(torch.from_numpy(decoded).to(self._total.device))

    @told
    def total(self, group: Group) -> Floats:
        found: Floats = self._of(group).cpu().numpy()
        return found

    @told
    def is_finite(self, group: Group) -> bool:
        return bool(torch.isfinite(self._of(group)).all())

    @told
    def is_zero(self, group: Group, where: slice) -> bool:
        return not bool(self._of(group)[where].any())

    def finish(self, group: Group, count: float, rng: RandomSource) -> float:
        return self._aggregator.finish(_NOTHING, count, rng)

    @told
    def clear(self, group: Group) -> None:
        self._of(group).zero_()

    @told
    def update(self, group: Group, factor: float, lr: float, idle: Sequence[slice]) -> None:
        self._parameters.update(group.index, self._of(group), factor, lr, idle)

    def _of(self, part: Group | Segment) -> torch.Tensor:
        return self._total[part.start : part.stop]
