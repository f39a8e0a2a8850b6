"""Estimates, before the first step, of the bytes of a step. A codec codes normal values, and the result is scaled to the plan."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from psnode.codecs import Codec
from psnode.codecs.rng import Key
from psnode.plans.coding import Coding
from psnode.plans.groups import Segment
from psnode.protocol.wire import HEADER_BYTES

_MOST = 1 << 20  # the most coordinates that are coded to estimate a codec's payload size


def step_bytes(coding: Coding) -> tuple[float, float]:
    """Return the expected bytes, frame headers included, of one worker's gradients and of the weights that one worker gets.

    The numbers are exact for codecs whose payloads have a fixed size. For other codecs they are estimated from the payloads of
    normally distributed values. The larger payloads during the warm-up of a ratio are not considered.
    """
    plan, down = coding.plan, coding.down
    headers = HEADER_BYTES * len(plan.groups)
    weights = 4.0 * plan.size if down is None else _total(plan.segments, down)
    return headers + _total(plan.segments, coding.up), headers + weights


def _total(segments: Iterable[Segment], codecs: Iterable[Codec]) -> float:
    by_codec: dict[str, tuple[Codec, list[Segment]]] = {}
    for segment, codec in zip(segments, codecs, strict=True):
        by_codec.setdefault(repr(codec), (codec, []))[1].append(segment)
    return sum(
        _share(codec, found) * sum(codec.max_nbytes(segment.shape) for segment in found) for codec, found in by_codec.values()
    )


def _share(codec: Codec, segments: list[Segment]) -> float:
    """Return the size of a codec's payload as a share of its largest possible size.

    The share is measured on one shape, if possible that of the largest of `segments` with at most _MOST coordinates.
    """
    if codec.lossless:
        return 1.0
    found = max((segment for segment in segments if segment.size <= _MOST), key=lambda segment: segment.size, default=None)
    shape = (_MOST,) if found is None and not codec.shaped else (found or min(segments, key=lambda s: s.size)).shape
    if not math.prod(shape):
        return 1.0
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    return codec.encode(values, Key.derive(0)).nbytes / codec.max_nbytes(shape)
