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
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int64s, readonly
from psnode.codecs.entropy.ans_model import section_cost
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.polarcodes.designs import CHANNELS

GROUP = 64
CHUNK = 1 << 16
TAPS = 9
LONGEST = 14  # base-2 logarithm of the longest block of a class
LADDER = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_FRAME = 512  # bits of headers for the description
_GAP = 1.04  # the error of a code relative to the error of an ideal code
_STEP = 1.0442737824274138  # 2^(1/16), the ratio of neighbours in the grid of m
_MULTIPLIERS = 1024  # the grid goes from 2^-48 to 2^16 times the mean square
_GAIN = 0.9  # classes are used only if they reduce the error to less than this share
_SAMPLED = 8  # one in this many groups is used to decide about taps

Flags = npt.NDArray[np.bool_]


class EnergyClasses(NamedTuple):
    """The class of every group, and the order of values in every chunk.

    `taps` (bool): True for chunks in the order of taps. `ids` (uint8): the class of every group, formed in the chosen order.
    """

    taps: Flags
    ids: Bytes


@inlined
def _energy(x: Floats, start: int, stride: int, scratch: Float64s) -> float:
    """Return the mean square of 64 values of `x`, which begin at `start` and are `stride` apart. `scratch`: 64 float64."""
    for i in range(GROUP):
        value = np.float64(x[start + i * stride])
        scratch[i] = value * value
    half = GROUP // 2
    while half:
        for i in range(half):
            scratch[i] += scratch[half + i]
        half //= 2
    return float(scratch[0]) / GROUP


@inlined
def _prefers_taps(chunk: Floats, floor: float, scratch: Float64s) -> bool:
    """Return True if groups of values that are 9 apart have a smaller product of (energy + floor) than groups of neighbours.

    The product is taken over sampled groups of `chunk`.
    """
    mantissa, exponent = 1.0, 0
    for start in range(0, chunk.size - GROUP * TAPS + 1, GROUP * TAPS):
        number = start // (GROUP * TAPS)
        dense, sparse = 0.0, 0.0
        for stride in (1, TAPS):
            first = start + (number % TAPS * GROUP if stride == 1 else number * 2 % TAPS)
            dense, sparse = sparse, _energy(chunk, first, stride, scratch) + floor
        ratio, power = math.frexp(sparse / dense)
        mantissa, more = math.frexp(mantissa * ratio)
        exponent += power + more
    return exponent < 0


@kernel
def _arrange(x: Floats, floor: float, taps: Flags, y: Floats, energies: Float64s, scratch: Float64s) -> None:
    """Choose the order of every chunk, and write it to `taps`.

    Overwrite `y` with the values of x in this order, then zeros, and `energies` with the energies of the groups. `scratch`: 64
    float64.
    """
    for number in range(taps.size):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, x.size)
        taps[number] = _prefers_taps(x[start:stop], floor, scratch)
        stride, at = (TAPS if taps[number] else 1), start  # with taps: values 0, 9, 18, ..., then 1, 10, ...
        for first in range(start, start + stride):
            for i in range(first, stop, stride):
                y[at] = x[i]
                at += 1
    for i in range(x.size, y.size):
        y[i] = np.float32(0)
    for g in range(energies.size):
        energies[g] = _energy(y, g * GROUP, 1, scratch)


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
    """Return the sum of (|x| - reach)^2 over all values with |x| > reach, which no point of the channel can represent."""
    total = 0.0
    for i in range(x.size):
        excess = max(abs(np.float64(x[i])) - reach, 0.0)
        total += excess * excess
    return total


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
    _arrange(x, mean_square * 4.0**-rate / 4, taps, y, energies, np.empty(GROUP))
    grid, left = _powers() * (mean_square * 2.0**-48), shares()
    place, total, rest = _allocate(energies, grid, np.array(LADDER), -np.diff(left), left, rate * x.size, ids, counts)
    alone = _GAP * 4.0**-rate * total  # the error if the values are coded without classes, and are Gaussian
    if rest > _GAIN * alone and rest > _GAIN * (alone + _beyond(x, _reach(rate) * math.sqrt(mean_square)) / GROUP):
        return None
    z = np.empty(int(counts[1:].sum()) * GROUP, np.float32)
    _sort(y, ids, _starts(counts), z)
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


@kernel
def _sort(y: Floats, ids: Bytes, starts: Int64s, z: Floats) -> None:
    """Copy the values of each group to `z`, after those of earlier groups of the same class."""
    for g in range(ids.size):
        if ids[g]:
            at = starts[ids[g]]
            for i in range(GROUP):
                z[at + i] = y[g * GROUP + i]
            starts[ids[g]] = at + GROUP


@kernel
def _restore(z: Floats, ids: Bytes, starts: Int64s, taps: Flags, y: Floats, out: Floats) -> None:
    """Undo _sort, which fills `y` (with zeros for class 0), and then undo the order of taps, which fills `out`."""
    for g in range(ids.size):
        at = starts[ids[g]]
        if ids[g]:
            starts[ids[g]] = at + GROUP
        for i in range(GROUP):
            y[g * GROUP + i] = z[at + i] if ids[g] else np.float32(0)
    for number in range(taps.size):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, out.size)
        stride, at = (TAPS if taps[number] else 1), start
        for first in range(start, start + stride):
            for i in range(first, stop, stride):
                out[i] = y[at]
                at += 1


def restore(z: Floats, classes: EnergyClasses, out: Floats) -> None:
    """Overwrite 1-D `out` with the values `z` in their original order. This is the inverse of `arrange`."""
    y = np.empty(classes.ids.size * GROUP, np.float32)
    _restore(z, classes.ids, _starts(_counts(classes.ids)), classes.taps, y, out)
