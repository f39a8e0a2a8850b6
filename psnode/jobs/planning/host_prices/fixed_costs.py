"""Measurement of the seconds that a coded segment costs in a step however few coordinates it has."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from psnode.codecs.rng import Key
from psnode.config.scheme import Scheme
from psnode.jobs.planning.host_prices.other_work import OtherWork
from psnode.jobs.planning.profile import FixedCosts
from psnode.plans.coding import Coding
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan

_SIDE = 32  # rows and columns of the tensor that is coded; a smaller one would be sent uncoded
_ROUNDS = 5


def fixed_costs(scheme: Scheme) -> FixedCosts:
    """Return the seconds of coding and decoding of a segment with few coordinates under a scheme.

    The codecs are timed alone, each time after other work. Without a codec for a direction, its seconds are 0, and so are those
    of decoding if payloads are added undecoded.
    """
    plan = make_plan([Tensor("few", (_SIDE, _SIDE))], scheme.codec, group_by="model")
    coding, values = Coding(plan, scheme), np.random.default_rng(0).standard_normal((_SIDE, _SIDE)).astype(np.float32)
    seconds = []
    for codec in (coding.up[0], coding.down[0] if coding.down else None):
        if codec is None or codec.lossless:
            seconds += [0.0, 0.0]
            continue
        payload = codec.encode(values, Key.derive(0))
        seconds += [_after_other_work(lambda c=codec: c.encode(values, Key.derive(0)))]  # type: ignore[misc]
        seconds += [_after_other_work(lambda c=codec, p=payload: c.decode(p))]  # type: ignore[misc]
    encode, decode, update, apply = seconds
    return FixedCosts(encode, apply, 0.0 if coding.segments[0].merges else decode, update)


def _after_other_work(run: Callable[[], object]) -> float:
    """Return the median seconds of `run` when the caches hold other data."""
    other, found = OtherWork(), []
    for _ in range(_ROUNDS):
        other.once()
        begin = time.perf_counter()
        run()
        found.append(time.perf_counter() - begin)
    return statistics.median(found)
