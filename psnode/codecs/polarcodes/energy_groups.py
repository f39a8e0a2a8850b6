"""The empirical prior: groups of 64 neighbouring values, sorted by their energy into classes that get more or fewer bits.

Gradients are not Gaussian vectors: their scale differs between layers, channels and taps. Let group g have the energy e_g (the
mean square of its values). For an error of D per coordinate, the optimal rate of the group is log2(e_g / D) / 2, or 0 if this
is negative. In this module rates are limited to the ladder 0, .5, 1, 1.5, 2, 3, 4: group g gets the rate r that minimises e_g
4^-r + m r. The multiplier m is the least for which all groups together, including the bits of their description, keep to the
codec's rate.

Neighbouring values in the weight of a convolution are its taps, whose scales differ most. Therefore the values of a chunk of
65536 may be rearranged: first the values 0, 9, 18, ..., then the values 1, 10, ..., and so on. This is the order of taps. It is
used if it makes the product of the groups' energies smaller, that is if the values of a group are then more alike.

Source: Berger, "Rate distortion theory", 1971 (reverse water-filling).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int64s, readonly
from psnode.codecs.entropy.ans_model import section_cost
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes.designs import CHANNELS
from psnode.codecs.polarcodes.group_order import CHUNK, GROUP, EnergyClasses, order, sort, unsort
from psnode.codecs.polarcodes.vectors import LANES

LONGEST = 14  # base-2 logarithm of the longest block of a class
LADDER = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_FRAME = 512  # bits of headers for the description
_GAP = 1.04  # the error of a code relative to the error of an ideal code
_STEP = 1.0442737824274138  # 2^(1/16), the ratio of neighbours in the grid of m
_MULTIPLIERS = 1024  # the grid goes from 2^-48 to 2^16 times the mean square
_GAIN = 0.9  # classes are used only if they reduce the error to less than this share


@kernel
def _allocate(
    energies: Float64s,
    grid: Float64s,
    ladder: Float64s,
    gains: Float64s,
    left: Float64s,
    budget: float,
    ids: Bytes,
    counts: Int64s,
) -> tuple[int, float, float]:
    """Overwrite `ids` with the class of every group, and `counts` with the number of groups in every class.

    The classes are those for the least multiplier m of `grid` (ascending) that keeps to `budget` bits. `left` holds, for each
    class, the share of a group's energy that coding leaves as error. `gains` holds, for each class except the first, the share
    that it removes in addition to the class before it. Return the index of m in `grid`, the sum of the energies, and the sum of
    the energies that are left.
    """
    # A group gets the next class if its energy reaches m times the extra rate over the gain. The number of bits falls as m rises,
    # so that bisection finds the least m within the budget.
    low, high = 0, grid.size - 1
    while low <= high:
        middle = (low + high) // 2
        above = energies.size
        bits = 0.0
        for k in range(gains.size + 1):  # limits ascend with the classes
            more: Any = 0
            if k < gains.size:
                limit = grid[middle] * (ladder[k + 1] - ladder[k]) / gains[k]
                for g in range(energies.size):
                    more += np.int64(energies[g] >= limit)
            counts[k] = above - more
            bits += GROUP * ladder[k] * counts[k]
            above = more
        if low == high:
            break
        if bits + section_cost(counts) / 2.0**24 + _FRAME <= budget:
            high = middle
        else:
            low = middle + 1
    total, rest = 0.0, 0.0
    for g in range(energies.size):
        ids[g] = 0
        for k in range(gains.size):
            ids[g] += np.uint8(energies[g] >= grid[low] * (ladder[k + 1] - ladder[k]) / gains[k])
        total += energies[g]
        rest += energies[g] * left[ids[g]]
    return low, total, rest


def shares() -> Float64s:
    """Return, for each class, the share of a group's energy that coding leaves as error."""
    return np.array([_GAP * 4.0**-rate if rate else 1.0 for rate in LADDER])


def _reach(rate: float) -> float:
    """Return the last point of the channel of `rate`, in units of the root mean square."""
    channel = CHANNELS[rate]
    return ((1 << channel.levels) - 1) / 2 * channel.step


@kernel
def _beyond(x: Floats, reach: float) -> float:
    """Return the sum of (|x| - reach)^2 over all values with |x| > reach, which no point of the channel can represent.

    It is summed in 32 lanes, whose sums are then added one after another.
    """
    sums = np.zeros(LANES)
    full = x.size // LANES * LANES
    for start in range(0, full, LANES):
        part = x[start : start + LANES]
        for j in range(LANES):
            sums[j] += _square_beyond(part[j], reach)
    total = 0.0
    for j in range(LANES):
        total += sums[j]
    for i in range(full, x.size):
        total += _square_beyond(x[i], reach)
    return total


@inlined
def _square_beyond(value: np.float32, reach: float) -> float:
    """Return (|value| - reach)^2 if |value| > reach, else 0."""
    beyond = abs(np.float64(value)) - reach
    return beyond * beyond if beyond > 0 else 0.0


class Arranged(NamedTuple):
    """The classes of an array's groups, the values sorted by class, and m, the error that one more bit saves.

    Values of class 0 are omitted.
    """

    classes: EnergyClasses
    values: Floats
    multiplier: float


def arrange(x: Floats, mean_square: float, rate: float) -> Arranged | None:
    """Return the values of 1-D `x`, finite and not all zeros, sorted into classes. Return None if classes gain little."""
    x = readonly(x)
    count = -(-x.size // GROUP)
    taps, y = np.empty(-(-x.size // CHUNK), np.bool_), np.empty(count * GROUP, np.float32)
    energies, ids, counts = np.empty(count), np.empty(count, np.uint8), np.empty(len(LADDER), np.int64)
    order(x, mean_square * 4.0**-rate / 4, taps, y, energies, np.empty(GROUP, np.float32))
    grid, left = _powers() * (mean_square * 2.0**-48), shares()
    place, total, rest = _allocate(energies, grid, np.array(LADDER), -np.diff(left), left, rate * x.size, ids, counts)
    alone = _GAP * 4.0**-rate * total  # the error if the values are coded without classes, and are Gaussian
    if rest > _GAIN * alone and rest > _GAIN * (alone + _beyond(x, _reach(rate) * math.sqrt(mean_square)) / GROUP):
        return None
    z = np.empty(int(counts[1:].sum()) * GROUP, np.float32)
    sort(x, y, taps, ids, _starts(counts), z)
    return Arranged(EnergyClasses(taps, ids), z, float(grid[place]))


@cache
def _powers() -> Float64s:
    return np.cumprod(np.full(_MULTIPLIERS, _STEP))


def _counts(ids: Bytes) -> Int64s:
    return np.bincount(ids, minlength=len(LADDER))


def _starts(counts: Int64s) -> Int64s:
    """Return the offset of each class among the values sorted by class. Class 0 has no values."""
    return np.concatenate([[0, 0], np.cumsum(counts[1:-1])]) * GROUP


def sizes(ids: Bytes) -> list[int]:
    """Return the number of values of each class, without class 0."""
    return [int(count) * GROUP for count in _counts(ids)[1:]]


def restore(z: Floats, classes: EnergyClasses, out: Floats) -> None:
    """Overwrite 1-D `out` with the values `z` in their original order. This is the inverse of `arrange`."""
    unsort(z, classes.ids, _starts(_counts(classes.ids)), classes.taps, np.empty(CHUNK, np.float32), out)
