"""The randomised Hadamard rotation U, which makes the values of any vector nearly Gaussian, of equal variance.

For a vector x of m = 2^k values, U x = H S x / sqrt(m), with random signs S and the Hadamard matrix H of order m. If m is not a
power of two, 2^k < m < 2^(k + 1), the first 2^k values are rotated in this way, and then the last 2^k values, with other signs.
U is orthogonal: ||U x|| = ||x||.

Let q be any reproduction of y = U x. The factor c = ||y||^2 / <y, q> makes the component of c U^-1 q along x equal to x. The
components orthogonal to x would cancel on average if U were uniformly distributed among rotations. With this U they cancel
exactly if all values of x have the same magnitude, and nearly if many values contribute. For x = (2, 1, 0, ...), y has only two
magnitudes, and x is decoded as (1.96, 1.08) on average at one bit per value.

Source: Vargaftik et al., "DRIVE: one-bit distributed mean estimation", NeurIPS 2021; EDEN, ICML 2022.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs import rng
from psnode.codecs.arrays import Floats, Words, readonly
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.polarcodes.lanes import Masks

STREAM = 21 + 256 * 255  # the stream of the random words for signs
_LARGEST = float(np.finfo(np.float32).max)


@kernel
def _hadamard(v: Floats) -> None:
    """Overwrite `v`, of 2^k values, with H v, where H is the Hadamard matrix."""
    half = 1
    while half < v.size:
        if half < 16:
            for start in range(0, v.size, 2 * half):
                for i in range(start, start + half):
                    a, b = v[i], v[i + half]
                    v[i], v[i + half] = a + b, a - b
        else:
            for start in range(0, v.size, 2 * half):
                first, second = v[start : start + half], v[start + half : start + 2 * half]
                for i in range(half):
                    a, b = first[i], second[i]
                    first[i], second[i] = a + b, a - b
        half *= 2


@inlined
def _flip(v: Floats, words: Masks, first: int) -> None:
    """Change the sign of v[i] if bit first + i of `words` is 1."""
    signed = viewed(v, np.uint32)
    for i in range(v.size):
        bit = first + i
        signed[i] ^= ((words[bit >> 5] >> np.uint32(bit & 31)) & np.uint32(1)) << np.uint32(31)


@inlined
def _order(size: int) -> int:
    """Return the largest power of two that is at most `size`."""
    order = 1
    while 2 * order <= size:
        order *= 2
    return order


@kernel
def _forward(v: Floats, words: Masks) -> None:
    order = _order(v.size)
    factor = np.float32(1 / np.sqrt(order))
    for start in range(0, v.size - order + 1, max(v.size - order, 1)):
        part = v[start : start + order]
        _flip(part, words, order if start else 0)
        _hadamard(part)
        for i in range(order):
            part[i] *= factor


@kernel
def _backward(v: Floats, words: Masks, scale: float) -> None:
    order = _order(v.size)
    last = v.size - order
    factor = np.float32(1 / np.sqrt(order))
    if last:
        part = v[last:]
        _hadamard(part)
        for i in range(order):
            part[i] *= factor
        _flip(part, words, order)
    part = v[:order]
    _hadamard(part)
    for i in range(order):
        part[i] *= factor
    _flip(part, words, 0)
    for i in range(v.size):
        v[i] = np.float32(min(max(np.float64(v[i]) * scale, -_LARGEST), _LARGEST))


def _signs(key: Words, start: int, size: int) -> Masks:
    """Return random sign bits for both steps of a rotation of `size` values, which begins at value `start` of the vector."""
    blocks = -(-2 * size // (32 * rng.HALF))
    out = np.empty(blocks * rng.HALF, np.uint32)
    for block in range(blocks):
        rng.fill(out[block * rng.HALF : (block + 1) * rng.HALF], readonly(key), STREAM, start + block * rng.BLOCK)
    return out


def rotated(x: Floats, size: float, key: Words, start: int) -> Floats:
    """Return the rotated values U x, divided by `size`, as a new array.

    The first value of `x` is value `start` of the whole vector.
    """
    y = (x / size).astype(np.float32)
    _forward(y, _signs(key, start, x.size))
    return y


def restore(q: Floats, scale: float, key: Words, start: int) -> None:
    """Overwrite `q` with `scale` times the inversely rotated values U^-1 q, limited to the range of float32."""
    _backward(q, _signs(key, start, q.size), float(scale))
