"""The test channel of a rate, in integers: x = a + noise, where a is one of the M = 2^levels points (k - (M - 1) / 2) step.

For a source of unit variance and a distortion D, the prior is P(a) ~ exp(-a^2 / 2 (1 - D)), and the noise is N(0, D). Level l
codes bit l of k. Levels are coded in ascending order, each given the levels before it. The LLRs of level l depend on the lower
bits c = k mod 2^l. There is a prior LLR for each c, and a posterior LLR for each c and each of 1024 cells of x. Cells are 1 /
128 wide; the outer cells are unbounded.

A test verifies that no LLR is so close to a half-integer that two machines could round it differently.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from psnode.codecs.arrays import Float64s, Words16
from psnode.codecs.polarcodes.lanes import LARGEST, UNIT, Llrs
from psnode.codecs.polarcodes.range_coder import PRECISION, STEPS
from psnode.codecs.polarcodes.successive_cancellation import SAMPLES
from psnode.codecs.polarcodes.vectors import LANES

CELLS = 1024
CELLS_PER_UNIT = 128


class Channel(NamedTuple):
    """The channel of a rate, for unit variance.

    `levels` is the number of bits per value, `step` the distance of the points, and `noise` the distortion D.
    """

    levels: int
    step: float
    noise: float


def points(channel: Channel) -> Float64s:
    """Return the M points of the channel."""
    count = 1 << channel.levels
    return np.asarray((np.arange(count) - (count - 1) / 2) * channel.step, np.float64)


def prior_llrs(channel: Channel) -> list[Float64s]:
    """Return the prior LLRs of each level l, in nats, of shape (2^l,)."""
    weights = -(points(channel) ** 2) / (2 * (1 - channel.noise))
    return [_llrs(weights, level) for level in range(channel.levels)]


def posterior_llrs(channel: Channel) -> list[Float64s]:
    """Return the posterior LLRs of each level l, in nats, of shape (2^l, 1024)."""
    centres = (np.arange(CELLS) - CELLS / 2 + 0.5) / CELLS_PER_UNIT
    a = points(channel)[:, None]
    weights = -(a**2) / (2 * (1 - channel.noise)) - (centres - a) ** 2 / (2 * channel.noise)
    return [_llrs(weights, level) for level in range(channel.levels)]


def _llrs(weights: Float64s, level: int) -> Float64s:
    """Return ln P(bit = 0) / P(bit = 1) for each value of the lower bits, from the logarithms of the weights of the points."""
    split = weights.reshape(-1, 2, 1 << level, *weights.shape[1:])  # [higher bits, bit, lower bits]
    sums: Float64s = np.logaddexp.reduce(split, axis=0)
    return np.asarray(sums[0] - sums[1])


def in_units(llrs: Float64s) -> Llrs:
    """Return LLRs in nats as integers, in the units of the lanes."""
    return np.clip(np.rint(llrs * UNIT), -LARGEST, LARGEST).astype(np.int16)


def chances() -> Words16:
    """Return the coder's table q: the probability, times 2^14, of the less likely value for |LLR| in 16 i .. 16 i + 15."""
    nats = (16 * np.arange(STEPS) + 7.5) / UNIT
    return np.asarray(np.maximum(np.rint(2.0**PRECISION / (1 + np.exp(nats))), 1), np.uint16)


def logistic() -> Llrs:
    """Return quantiles of the logistic distribution in a scattered order. The first 32 are repeated at the end.

    A bit with LLR l becomes 1 if l is below a randomly chosen quantile. This has the probability 1 / (1 + e^l).
    """
    order = np.arange(SAMPLES) * 1597 % SAMPLES
    u = (order + 0.5) / SAMPLES
    values = in_units(np.log(u / (1 - u)))
    return np.concatenate([values, values[:LANES]])
