"""Entry-wise ATOMO on long vectors: the search for the level V of the optimal probabilities and the draw take O(d) time each.

For a budget s the optimal probabilities are p_i = min(1, |x_i| / V). Entries above the level V are certain to be sent. V is the
L1 norm of the other entries, divided by the budget that the certain entries leave. psnode.codecs.lowrank.atoms computes the
same probabilities for a small number of atoms, by sorting.

The draw is systematic: the entries occupy successive intervals of a line, and the interval of entry i has length p_i. The
entries whose intervals contain one of the points u, u + 1, u + 2, ... are taken, where u is random. Probabilities are rounded
to multiples of 2^-43, up or down by one uniform random number for all entries, so that the expectation of each rounded
probability is exact. All entries may share this number, because E decode = x is a condition on each entry separately.

Sources: Wang et al., "ATOMO: Communication-efficient Learning via Atomic Sparsification", NeurIPS 2018, Theorem 3; Madow, "On
the theory of systematic sampling", 1949.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Words, Words32
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.large_values import places, take
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.rng import words
from psnode.codecs.selection.largest import Entries, Scan
from psnode.codecs.selection.scans import Plain

UNIT_BITS = 43  # 512 probabilities of at most 1 add up exactly in a float64
UNITS = 1 << UNIT_BITS
_BLOCK = 512
_GROUP = 32
_LANES = 64
_SMALL = 1 << 14
_LARGEST = float(np.finfo(np.float32).max)


@kernel
def sum_below(x: Floats, limit: np.uint32) -> float:
    """Return the float64 sum of those magnitudes of `x` whose bits are below `limit`.

    The sum is computed in 64 lanes: lane l adds the coordinates whose index is l modulo 64.
    """
    bits = viewed(x, np.uint32)
    lanes = np.zeros(_LANES, np.float64)
    full = x.size // _LANES * _LANES
    for start in range(0, full, _LANES):
        for lane in range(_LANES):
            below = np.uint32(bits[start + lane] & np.uint32(MAGNITUDE)) < limit
            lanes[lane] += np.float64(abs(x[start + lane])) if below else 0.0
    for i in range(full, x.size):
        if np.uint32(bits[i] & np.uint32(MAGNITUDE)) < limit:
            lanes[i - full] += np.float64(abs(x[i]))
    total = 0.0
    for lane in range(_LANES):
        total += lanes[lane]
    return total


@kernel
def solve(magnitudes: Float64s, rest: float, budget: float) -> float:
    """Return the level V for the budget, given the entries `magnitudes` and the sum `rest` of all other entries.

    All other entries must be at most the level. Entries above the level are certain: they are removed, and the level is
    recomputed from the others, until no entry exceeds the level. The level only falls, so that removed entries stay certain. If
    `rest` is 0 and the budget exceeds the number of non-zero magnitudes, the level is 0. `magnitudes` is overwritten.
    """
    left = budget
    count = magnitudes.size
    while True:
        total = rest
        for i in range(count):
            total += magnitudes[i]
        level = total / left
        kept = 0
        for i in range(count):
            magnitude = magnitudes[i]
            magnitudes[kept] = magnitude
            kept += magnitude <= level
        if kept == count or count - kept >= left:
            return level
        left -= count - kept
        count = kept


def level_of(x: Floats, budget: float, key: Words, stream: int) -> tuple[np.float32, float]:
    """Return the level rounded up to a float32, and the divisor by which magnitudes become probabilities.

    Both numbers are equal unless the level exceeds float32's range. Raises NonFiniteGradientError.
    """
    flat = x.reshape(-1)
    limit = 1
    if x.size > _SMALL:
        found = np.empty(min(x.size // 64, _SMALL), np.uint32)
        places(x.size, key, stream, found)
        magnitudes = np.abs(take(flat, found)).astype(np.float64)
        limit = _half(solve(magnitudes[np.isfinite(magnitudes)], 0.0, budget * found.size / x.size))
    while True:
        above = np.abs(Scan(Plain(x)).at_least(limit, x.size, x.size // 64).values).astype(np.float64)
        exact = solve(above, sum_below(flat, np.uint32(limit)), budget)
        level = np.float32(min(exact, _LARGEST))
        if float(level) < exact < _LARGEST:
            level = np.nextafter(level, np.float32(np.inf))
        if limit == 1 or int(level.view(np.uint32)) >= limit:
            return level, max(float(level), exact)
        limit = _half(exact)


def _half(level: float) -> int:
    """Return the bits of half the level as a float32, but at least 1."""
    return max(1, int(np.float32(min(level / 2, _LARGEST)).view(np.uint32)))


@kernel
def _draw(x: Floats, level: np.float32, scale: float, dither: float, point: np.uint64, indices: Words32, values: Floats) -> int:
    """Fill `indices` and `values` with the entries above `level` and the entries drawn. Return their number.

    Both arrays must have room for all entries that can be taken, plus one group of entries.
    """
    units = np.zeros(_BLOCK, np.uint64)
    certain = np.zeros(_BLOCK, np.uint64)
    count = np.int64(0)
    most = indices.size - _GROUP
    for start in range(0, x.size, _BLOCK):
        part = x[start : start + _BLOCK]
        for i in range(part.size):
            a = abs(part[i])
            unit = min(np.floor(np.float64(a) * scale + dither), np.float64(UNITS))
            units[i] = np.uint64(0) if a > level else np.uint64(np.int64(unit))
            certain[i] = np.uint64(1) if a > level else np.uint64(0)
        units[part.size :] = 0
        certain[part.size :] = 0
        for first in range(0, part.size, _GROUP):
            after = point
            above = np.uint64(0)
            for i in range(_GROUP):
                after += units[first + i]
                above |= certain[first + i]
            if above == 0 and after ^ point < np.uint64(UNITS):
                point = after
                continue
            for i in range(first, min(first + _GROUP, part.size)):
                indices[count] = start + i
                values[count] = part[i]
                after = point + units[i]
                count += np.int64(certain[i] | ((after ^ point) >> np.uint64(UNIT_BITS) & np.uint64(1)))
                point = after
            if count >= most:
                return most
    return int(count)


def draw(x: Floats, level: np.float32, divisor: float, most: int, key: Words, stream: int) -> Entries:
    """Return the entries above `level`, and a systematic sample of all other entries.

    Each of the other entries is taken with probability |x| / divisor. `most` is an upper bound of the number of entries.
    """
    first, second, third, _ = words(key, stream, 1)[0].tolist()
    indices, values = np.empty(most + _GROUP, np.uint32), np.empty(most + _GROUP, np.float32)
    point = (first << 32 | second) >> (64 - UNIT_BITS)
    scale = UNITS / divisor if divisor else 0.0
    count = _draw(x.reshape(-1), level, scale, third * 2.0**-32, np.uint64(point), indices, values)
    return Entries(indices[:count], values[:count])
