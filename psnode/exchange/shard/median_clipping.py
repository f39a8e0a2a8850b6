"""Clipping to the median: no push of a round moves the weights further than the median push.

The pushes of a group are kept, coded, until the group's round closes. Then each push is added times

    factor = min(1, m / ||push||)        m: the lower median of the norms of the round's pushes

The lower median is the norm of one of the pushes: two of four pushes, and three of five, are added whole. If at most half of
the round's workers send false gradients, m is at most the largest norm of an honest push. The clipped part returns to the
worker: the worker gets the factor, and adds 1 - factor times its push to its residual, if it has a residual.
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
    """Push that is kept until its round closes.

    `frame` owns the memory of the payloads. `norm`: L2 norm of the push times `weight`.
    """

    frame: Frame
    push: Push
    weight: float
    norm: float


class Clipped(NamedTuple):
    """Record of a push, from `rank` in `step`, that was added times `factor`, which is below 1."""

    rank: int
    step: int
    factor: float


class Clipping:
    """Pushes that are held for the open round of every group, in the order in which they will be added.

    Several threads may use it at the same time for different groups.
    """

    def __init__(self, codecs: Sequence[Codec], groups: Iterable[int]) -> None:
        self._codecs = codecs
        self._held: dict[int, list[Held]] = {group: [] for group in groups}

    def hold(self, frame: Frame, push: Push, weight: float) -> None:
        """Keep a push until its round closes."""
        norm = abs(weight) * math.sqrt(sum(map(self._energy, push.parts)))
        self._held[frame.group].append(Held(frame, push, weight, norm))

    def _energy(self, part: MeasuredPayload) -> float:
        """Return the sum of squares of the decoded values.

        Its root may be less than `Measured.norm`, which may be only a bound.
        """
        decoded = self._codecs[part.segment.index].decode(part.payload).reshape(-1)
        return float(inner_products(decoded, decoded)[1])

    def take(self, group: int) -> list[tuple[Held, float]]:
        """Remove and return the held pushes of a group whose round closes. Each push comes with its factor, a float32 number."""
        held, self._held[group] = self._held[group], []
        return list(zip(held, factors([each.norm for each in held]), strict=True))


def factors(norms: Sequence[float]) -> list[float]:
    """Return the factors, float32 numbers from 0 to 1, of pushes that have these norms."""
    limit = sorted(norms)[(len(norms) - 1) // 2] if norms else 0.0
    return [1.0 if norm <= limit else float(np.float32(limit / norm)) for norm in norms]
