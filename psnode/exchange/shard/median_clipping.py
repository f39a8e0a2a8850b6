"""Clipping to the median: no push of a round moves the weights further than the median push.

The pushes of a group are kept, coded, until the group's round closes. Then each push is added times

    factor = min(1, m / ||push||)        m: the lower median of the norms of the round's pushes

so that two pushes of four, and three of five, are added whole. The lower median is the norm of one of the pushes. So if at
most half of the round's workers send false gradients, m is at most the largest norm of an honest push. The clipped part
returns to the worker: the worker gets the factor and adds 1 - factor times its push to its residual, if it has a residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from psnode.codecs import Codec
from psnode.codecs.kernels.dots import inner_products
from psnode.exchange.shard.pushes import MeasuredPayload, Push
from psnode.protocol.wire import Frame


class Held(NamedTuple):
    """Push that waits for its round to close.

    `frame` owns the memory of the payloads. `norm`: L2 norm of `weight` times the push.
    """

    frame: Frame
    push: Push
    weight: float
    norm: float


class Clipped(NamedTuple):
    """Record that the push of `rank` in `step` was added times `factor`, which is below 1."""

    rank: int
    step: int
    factor: float


class Clipping:
    """Pushes that are held for every group's open round, in the order of their addition. Groups may be used concurrently."""

    def __init__(self, codecs: Sequence[Codec], groups: Iterable[int]) -> None:
        self._codecs = codecs
        self._held: dict[int, list[Held]] = {group: [] for group in groups}

    def hold(self, frame: Frame, push: Push, weight: float) -> None:
        """Keep a push until its round closes."""
        norm = abs(weight) * math.sqrt(sum(map(self._energy, push.parts)))
        self._held[frame.group].append(Held(frame, push, weight, norm))

    def _energy(self, part: MeasuredPayload) -> float:
        """Return the sum of squares of the decoded values, which may be less than the square of `Measured.norm`."""
        decoded = self._codecs[part.segment.index].decode(part.payload).reshape(-1)
        return float(inner_products(decoded, decoded)[1])

    def take(self, group: int) -> list[tuple[Held, float]]:
        """Remove and return the pushes of a group, whose round closes. Each push comes with its factor, a float32 number."""
        held, self._held[group] = self._held[group], []
        return list(zip(held, factors([each.norm for each in held]), strict=True))


def factors(norms: Sequence[float]) -> list[float]:
    """Return the factors of pushes with these norms: float32 numbers from 0 to 1."""
    limit = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    return [1.0 if norm <= limit else float(np.float32(limit / norm)) for norm in norms]
