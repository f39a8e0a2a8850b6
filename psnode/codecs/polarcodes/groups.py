"""The empirical prior: groups of 64 neighbours, sorted by their energy into classes that get more bits or fewer.

Gradients are no Gaussian vectors: their scale changes from layer to layer, channel to channel, tap to tap. With energies e_g
(mean squares) of the groups, and an error of D in each coordinate, rates log2(e_g / D) / 2, or 0, are optimal. Here rates are
those of the ladder 0, .5, 1, 1.5, 2, 3, 4: group g takes the one that makes e_g 4^-r + m r least, with the least m for which all
groups together keep to the rate in bits, their own description included.

Neighbours in a convolution's weight are its taps, which differ most. So in each 65536 values those at 0, 9, 18, ... may come
first, then those at 1, 10, ..., if their groups are more alike: the product of the groups' energies decides.

Source: Berger, "Rate distortion theory", 1971 (reverse water-filling).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Float64s, Floats
from psnode.codecs.entropy.ans_model import section_cost
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.polarcodes.designs import CHANNELS

GROUP = 64
CHUNK = 1 << 16
TAPS = 9
LONGEST = 14  # base-2 logarithm of the longest block of a class
LADDER = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
_FRAME = 512  # bits around the description
_GAP = 1.04  # error of a code over that of an ideal one
_STEP = 1.0442737824274138  # 2^(1/16): of the grid of m
_MULTIPLIERS = 1024  # from 2^-48 to 2^16 of the mean square
_GAIN = 0.9  # of the error: less is not worth it
_SAMPLED = 8  # one of so many groups decides about taps

Flags = npt.NDArray[np.bool_]


class Classes(NamedTuple):
    """`taps`, bool: which chunks are in the order of taps; `ids`, uint8: of every group, in that order."""

    taps: Flags
    ids: Bytes


@kernel
def _energy(x: Floats, start: int, stride: int, scratch: Float64s) -> float:
    """The mean square of the 64 values of `x` from `start` on, `stride` apart. `scratch`: 64 float64."""
    for i in range(GROUP):
        value = np.float64(x[start + i * stride])
        scratch[i] = value * value
    half = GROUP // 2
    while half:
        for i in range(half):
            scratch[i] += scratch[half + i]
        half //= 2
    return float(scratch[0]) / GROUP


@kernel
def _prefers_taps(chunk: Floats, floor: float) -> bool:
    """True if the product of (energy + floor) over sampled groups is smaller for groups of values 9 apart."""
    scratch = np.empty(GROUP)
    mantissa, exponent = 1.0, 0
    for start in range(0, chunk.size - GROUP * TAPS + 1, GROUP * TAPS):
        number = start // (GROUP * TAPS)
        dense = _energy(chunk, start + number % TAPS * GROUP, 1, scratch) + floor
        sparse = _energy(chunk, start + number * 2 % TAPS, TAPS, scratch) + floor
        ratio, power = math.frexp(sparse / dense)
        mantissa, more = math.frexp(mantissa * ratio)
        exponent += power + more
    return exponent < 0


@kernel
def _reorder(chunk: Floats, out: Floats) -> None:
    """Values 0, 9, 18, ..., then 1, 10, ..."""
    at = 0
    for first in range(TAPS):
        for i in range(first, chunk.size, TAPS):
            out[at] = chunk[i]
            at += 1


@kernel
def _restore(chunk: Floats, out: Floats) -> None:
    """The inverse of _reorder."""
    at = 0
    for first in range(TAPS):
        for i in range(first, out.size, TAPS):
            out[i] = chunk[at]
            at += 1


@kernel
def _arrange(x: Floats, floor: float, taps: Flags, y: Floats, energies: Float64s) -> None:
    """Overwrite `taps`, `y` (x in that order, then zeros) and the energies of its groups."""
    scratch = np.empty(GROUP)
    for number in range(taps.size):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, x.size)
        taps[number] = _prefers_taps(x[start:stop], floor)
        if taps[number]:
            _reorder(x[start:stop], y[start:stop])
        else:
            y[start:stop] = x[start:stop]
    y[x.size :] = np.float32(0)
    for g in range(energies.size):
        energies[g] = _energy(y, g * GROUP, 1, scratch)


@kernel
def _classify(energies: Float64s, limits: Float64s, ids: Bytes) -> None:
    """ids = how many limits are not above the energy."""
    ids[:] = 0
    for limit in limits:
        for g in range(energies.size):
            ids[g] += np.uint8(energies[g] >= limit)


@kernel
def _errors(energies: Float64s, ids: Bytes, shares: Float64s) -> tuple[float, float]:
    """The sum of energies, and that of their rests behind the classes."""
    total, left = 0.0, 0.0
    for g in range(energies.size):
        total += energies[g]
        left += energies[g] * shares[ids[g]]
    return total, left


def shares() -> Float64s:
    """Share of an energy that a class leaves."""
    return np.array([_GAP * 4.0**-rate if rate else 1.0 for rate in LADDER])


def _limits(multiplier: float) -> Float64s:
    """The least energy of each class but the first."""
    return multiplier * np.diff(LADDER) / -np.diff(shares())


def _reach(rate: float) -> float:
    """The last point of the rate's channel, in root mean squares."""
    channel = CHANNELS[rate]
    return ((1 << channel.levels) - 1) / 2 * channel.step


@kernel
def _beyond(x: Floats, reach: float) -> float:
    """The energy of the excess of values over `reach`: no point is there for it."""
    total = 0.0
    for i in range(x.size):
        excess = max(abs(np.float64(x[i])) - reach, 0.0)
        total += excess * excess
    return total


class Arranged(NamedTuple):
    """The classes, the groups sorted by class without the first, and m: the saving of a bit more."""

    classes: Classes
    values: Floats
    multiplier: float


def arrange(x: Floats, mean_square: float, rate: float) -> Arranged | None:
    """Sort 1-D `x`, finite and not 0; None if that gains little."""
    count = -(-x.size // GROUP)
    taps, y = np.empty(-(-x.size // CHUNK), np.bool_), np.empty(count * GROUP, np.float32)
    energies = np.empty(count)
    _arrange(x, mean_square * 4.0**-rate / 4, taps, y, energies)
    ids, multiplier = _allocate(energies, mean_square, rate * x.size)
    total, left = _errors(energies, ids, shares())
    alone = _GAP * 4.0**-rate * total  # the rest if the values are coded as they are, and Gaussian
    if left > _GAIN * alone and left > _GAIN * (alone + _beyond(x, _reach(rate) * math.sqrt(mean_square)) / GROUP):
        return None
    z = np.empty(int((ids > 0).sum()) * GROUP, np.float32)
    _sort(y, ids, _starts(ids), z)
    return Arranged(Classes(taps, ids), z, multiplier)


def _allocate(energies: Float64s, mean_square: float, budget: float) -> tuple[Bytes, float]:
    """The ids of the least m that keeps to `budget` bits, and this m."""
    grid = np.cumprod(np.full(_MULTIPLIERS, _STEP)) * (mean_square * 2.0**-48)
    low, high = 0, _MULTIPLIERS - 1
    ids = np.empty(energies.size, np.uint8)
    while low < high:
        middle = (low + high) // 2
        _classify(energies, _limits(grid[middle]), ids)
        counts = np.bincount(ids, minlength=len(LADDER))
        bits = GROUP * float(counts @ np.array(LADDER)) + section_cost(counts) / 2**24 + _FRAME
        low, high = (low, middle) if bits <= budget else (middle + 1, high)
    _classify(energies, _limits(grid[low]), ids)
    return ids, float(grid[low])


def _starts(ids: Bytes) -> npt.NDArray[np.int64]:
    """Offsets of each class among the values of all classes but the first."""
    counts = np.bincount(ids, minlength=len(LADDER))
    counts[0] = 0
    return np.concatenate([[0], np.cumsum(counts)[:-1]]) * GROUP


def sizes(ids: Bytes) -> list[int]:
    """The number of values of each class but the first."""
    return [int(count) * GROUP for count in np.bincount(ids, minlength=len(LADDER))[1:]]


@kernel
def _sort(y: Floats, ids: Bytes, starts: npt.NDArray[np.int64], z: Floats) -> None:
    """Append each group to its class."""
    for g in range(ids.size):
        if ids[g]:
            at = starts[ids[g]]
            z[at : at + GROUP] = y[g * GROUP : (g + 1) * GROUP]
            starts[ids[g]] = at + GROUP


@kernel
def _unsort(z: Floats, ids: Bytes, starts: npt.NDArray[np.int64], y: Floats) -> None:
    """The inverse of _sort; zeros in the first class."""
    for g in range(ids.size):
        if ids[g]:
            at = starts[ids[g]]
            y[g * GROUP : (g + 1) * GROUP] = z[at : at + GROUP]
            starts[ids[g]] = at + GROUP
        else:
            y[g * GROUP : (g + 1) * GROUP] = np.float32(0)


def restore(z: Floats, classes: Classes, out: Floats) -> None:
    """Overwrite 1-D `out`: the inverse of `arrange`."""
    y = np.empty(classes.ids.size * GROUP, np.float32)
    _unsort(z, classes.ids, _starts(classes.ids), y)
    for number, swapped in enumerate(classes.taps.tolist()):
        start, stop = number * CHUNK, min((number + 1) * CHUNK, out.size)
        if swapped:
            _restore(y[start:stop], out[start:stop])
        else:
            out[start:stop] = y[start:stop]
