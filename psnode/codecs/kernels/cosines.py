"""The orthonormal discrete cosine transform (DCT-II) of blocks whose size is a power of two, and its inverse, in float64.

16 blocks are transformed in parallel, and row i holds value i of each of them. The transform is Lee's recursion. The even
coefficients of n values are the coefficients of the sums x_i + x_{n-1-i}. For the odd coefficients, the differences x_i -
x_{n-1-i} are divided by 2 cos((i + 1/2) pi / n). Each odd coefficient is the sum of two neighbouring coefficients of these
quotients. The inverse is the transpose: the transposed steps in reverse order.

Values after the last full block are cut into blocks of smaller powers of two, so that the transform of any vector is
orthonormal. No step depends on the processor. The cosines do not depend on it either, because they are computed with sums,
products, quotients and square roots only (docs/decisions/fourier-atomo.md).

Source: Lee, "A new algorithm to compute the discrete cosine transform", IEEE Trans. ASSP 32, 1984.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Words32, readonly
from psnode.codecs.kernels.cache_hints import wide
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.operations import load, spread, store

LONGEST = 4096
LANES = 16


@cache
def factors(longest: int = LONGEST) -> Float64s:
    """Return a table of the factors 1 / (2 cos((i + 1/2) pi / n)), for i < n / 2 and all powers of two n up to `longest`.

    The factor for i and n is at index n / 2 + i.
    """
    cosine, sine = np.ones(1), np.zeros(1)  # of m pi / (2 longest), for m = 0, 1, ...
    c, s = 0.0, 1.0  # of pi / 2^j
    steps = []
    for _ in range(longest.bit_length() - 1):
        c, s = math.sqrt((1 + c) / 2), s / (2 * math.sqrt((1 + c) / 2))
        steps.append((c, s))
    for c, s in reversed(steps):
        cosine, sine = np.concatenate([cosine, cosine * c - sine * s]), np.concatenate([sine, sine * c + cosine * s])
    out = np.empty(longest)
    out[0] = 0.5
    for n in (2 << power for power in range(longest.bit_length() - 1)):
        complement = (n - 1 - 2 * np.arange(n // 2)) * (longest // n)  # to pi / 2, near which the cosine is inexact
        out[n // 2 : n] = 0.5 / sine[complement]
    return readonly(out)


@instructions
def halve_rows(a: Float64s, b: Float64s, first: int, last: int, low: int, high: int, factor: np.float64) -> None:
    """Write the sum of two rows of `a`, and their difference times `factor`, to two rows of `b`."""
    one, other = load(a, first, LANES), load(a, last, LANES)
    store(b, low, one + other)
    store(b, high, (one - other) * spread(factor, LANES))


@instructions
def join_rows(a: Float64s, b: Float64s, low: int, high: int, first: int, last: int, factor: np.float64) -> None:
    """Write the result of the transposed step of halve_rows to two rows of `b`."""
    even, odd = load(a, low, LANES), load(a, high, LANES) * spread(factor, LANES)
    store(b, first, even + odd)
    store(b, last, even - odd)


@instructions
def add_rows(a: Float64s, one: int, other: int, b: Float64s, target: int) -> None:
    """Write the sum of two rows of `a` to row `target` of `b`."""
    store(b, target, load(a, one, LANES) + load(a, other, LANES))


@instructions
def move_row(a: Float64s, origin: int, b: Float64s, target: int) -> None:
    """Copy a row of `a` to row `target` of `b`."""
    store(b, target, load(a, origin, LANES))


@inlined
def _forward(a: Float64s, b: Float64s, size: int, table: Float64s) -> None:
    """Overwrite the first `size` rows of `a` with their transform, which is not normalised. `b`: scratch of the same size."""
    n = size
    while n > 1:
        half = n // 2
        for start in range(0, size, n):
            for i in range(half):
                low, high = (start + i) * LANES, (start + half + i) * LANES
                halve_rows(a, b, low, (start + n - 1 - i) * LANES, low, high, table[half + i])
        a, b = b, a
        n = half
    n = 2
    while n <= size:
        half = n // 2
        for start in range(0, size, n):
            for i in range(half):
                low, high = (start + i) * LANES, (start + half + i) * LANES
                target = (start + 2 * i) * LANES
                move_row(a, low, b, target)
                if i < half - 1:
                    add_rows(a, high, high + LANES, b, target + LANES)
                else:
                    move_row(a, high, b, target + LANES)
        a, b = b, a
        n *= 2


@inlined
def _backward(a: Float64s, b: Float64s, size: int, table: Float64s) -> None:
    """Apply the transposed steps of _forward in reverse order to the rows of `a`. `b`: scratch of the same size."""
    n = size
    while n > 1:
        half = n // 2
        for start in range(0, size, n):
            for i in range(half):
                low, high = (start + i) * LANES, (start + half + i) * LANES
                origin = (start + 2 * i) * LANES
                move_row(a, origin, b, low)
                if i:
                    add_rows(a, origin - LANES, origin + LANES, b, high)
                else:
                    move_row(a, origin + LANES, b, high)
        a, b = b, a
        n = half
    n = 2
    while n <= size:
        half = n // 2
        for start in range(0, size, n):
            for i in range(half):
                low, high = (start + i) * LANES, (start + half + i) * LANES
                join_rows(a, b, low, high, low, (start + n - 1 - i) * LANES, table[half + i])
        a, b = b, a
        n *= 2


@inlined
def _scales(size: int, scale: float) -> tuple[float, float]:
    """Return the normalising factors of the first coefficient and of the other coefficients, both times `scale`."""
    return scale * np.sqrt(1.0 / size), scale * np.sqrt(2.0 / size)


@inlined
def _coefficients(x: Floats, size: int, lanes: int, scale: float, table: Float64s, a: Float64s, b: Float64s, out: Floats) -> None:
    """Write `scale` times the coefficients of `lanes` blocks of `size` values to `out`."""
    for lane in range(lanes):
        for i in range(size):
            a[i * LANES + lane] = np.float64(x[lane * size + i])
    _forward(a, b, size, table)
    first, other = _scales(size, scale)
    for lane in range(lanes):
        out[lane * size] = np.float32(a[lane] * first)
        for i in range(1, size):
            out[lane * size + i] = np.float32(a[i * LANES + lane] * other)


@kernel
def coefficients(x: Floats, block: int, scale: float, table: Float64s, out: Floats) -> None:
    """Write `scale` times the coefficients of `x` to `out`. Both are flat and do not overlap.

    `table`: the result of factors().
    """
    wide()
    a, b = np.zeros(block * LANES, np.float64), np.zeros(block * LANES, np.float64)
    start, size = 0, block
    while start < x.size:
        while size > x.size - start:
            size //= 2
        lanes = min(LANES, (x.size - start) // size)
        _coefficients(x[start:], size, lanes, scale, table, a, b, out[start:])
        start += lanes * size


@inlined
def _blocks(a: Float64s, size: int, lanes: int, limit: float, weight: np.float32, out: Floats) -> None:
    """Add the `lanes` blocks of `size` values in the rows of `a`, times `weight`, to `out`.

    With a weight of 0, write the values instead.
    """
    for lane in range(lanes):
        for i in range(size):
            value = np.float32(min(max(a[i * LANES + lane], -limit), limit))
            at = lane * size + i
            out[at] = out[at] + weight * value if weight else value


@kernel
def restore(
    indices: Words32,
    values: Floats,
    block: int,
    scale: float,
    limit: float,
    table: Float64s,
    weight: np.float32,
    out: Floats,
) -> None:
    """Add `weight` times y to `out` (flat).

    The coefficients of y are `scale` times `values` at ascending `indices`, and 0 elsewhere.

    y is rounded to float32 and limited to +-`limit`. The product and the sum are both rounded to float32. With a weight of 0, y
    is written to `out` instead. `table`: the result of factors().
    """
    wide()
    a, b = np.empty(block * LANES, np.float64), np.empty(block * LANES, np.float64)
    start, size, j = 0, block, 0
    while start < out.size:
        while size > out.size - start:
            size //= 2
        lanes = min(LANES, (out.size - start) // size)
        stop = start + lanes * size
        if j < indices.size and indices[j] < stop:
            first, other = _scales(size, scale)
            a[: size * LANES] = 0.0
            while j < indices.size and indices[j] < stop:
                at = np.int64(indices[j]) - start
                a[at % size * LANES + at // size] = np.float64(values[j]) * (other if at % size else first)
                j += 1
            _backward(a, b, size, table)
            _blocks(a, size, lanes, limit, weight, out[start:stop])
        elif not weight:
            out[start:stop] = 0
        start = stop
