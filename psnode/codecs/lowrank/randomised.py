"""The largest terms of a matrix from a random subspace, by a few passes over the matrix instead of a decomposition.

Let A be a matrix with its short side as rows, and G a Gaussian matrix with a few more columns than the number of terms wanted.
Q is an orthonormal basis of A A^T G (one power iteration, float32). The matrix Q^T A (float64) is small, and its singular value
decomposition gives terms whose sum is Q Q^T A.

These terms lack E = A - Q Q^T A, which is acceptable in feedback loops. For an unbiased estimate, `cover` adds one random term.
Let z be uniform on the unit sphere of Q's complement, whose dimension is D. Then D z z^T A has expectation E and a mean squared
length of D ||E||^2. In sampling, this term counts as an atom of length sqrt(D) ||E||. Its own variance is (D - 1) ||E||^2. The
estimate is therefore hardly useful unless E is small.

Source: Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 53(2), 2011, Algorithms 4.3 and 5.1.
"""

from __future__ import annotations

import math

import numpy as np

from psnode.codecs.arrays import Float64s, Floats, Words
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.lowrank.spectrum import NOISE, Core, Spectrum, eigenpairs, project, spectrum, trim
from psnode.codecs.rng import BLOCK, fill
from psnode.codecs.table import number_of

OVERSAMPLING = 5
_STREAM = number_of("svd") | 1 << 8
_SAFE = 2.0**60


def sketch(matrix: Floats, count: int, key: Words, *, cover: bool = False) -> Spectrum:
    """Return approximations of the largest terms of `matrix`, at least `count`, in descending order.

    With `cover`, a random term for the rest of the matrix follows. The result depends only on `matrix`, `key`, machine, library
    version and number of BLAS threads. A matrix whose short side has at most count + 5 entries is decomposed exactly. Raises
    NonFiniteGradientError.
    """
    core = trim(matrix)
    short = min(core.values.shape)
    width = count + OVERSAMPLING
    if short <= width:
        return spectrum(matrix)
    drawn = normals(key, short * (width + 1)).reshape(width + 1, short)
    basis = _range(core, drawn[:width], matrix)
    products = project(core, basis)
    values, turns = eigenpairs(products @ products.T)
    found = Spectrum(core, values, turns @ basis, turns @ products)
    return _covered(found, basis, drawn[width]) if cover else found


def _range(core: Core, drawn: Float64s, matrix: Floats) -> Float64s:
    """Return orthonormal rows (width, short) that span approximately the largest singular vectors of the short side."""
    a = core.values.T if core.tall else core.values
    start = drawn.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        first = start @ a
        peak = float(np.max(np.abs(first)))
        second = (first / np.float32(peak)) @ a.T
    if not (1 / _SAFE < peak < _SAFE and np.isfinite(second).all()):
        largest = float(np.max(np.abs(a)))
        if not math.isfinite(largest):
            raise_nonfinite(matrix)
        scaled = np.ldexp(a, -math.frexp(largest)[1]).astype(np.float32, copy=False)
        second = (start @ scaled) @ scaled.T
    return np.ascontiguousarray(np.linalg.qr(second.T.astype(np.float64))[0].T)


def _covered(found: Spectrum, basis: Float64s, direction: Float64s) -> Spectrum:
    """Return `found` with a random term for the rest of the matrix, or unchanged if the rest is within rounding errors."""
    assert found.products is not None
    energy = sum(float(np.sum(np.square(row, dtype=np.float64))) for row in found.core.values)
    missing = energy - float(np.sum(found.values**2))
    if missing <= NOISE**2 * energy:
        return found
    for _ in range(2):  # the second projection removes the rounding errors of the first
        direction = direction - (basis @ direction) @ basis
        direction = direction / np.linalg.norm(direction)
    dimension = direction.size - len(basis)
    return Spectrum(
        found.core,
        np.append(found.values, math.sqrt(dimension * missing)),
        np.vstack([found.vectors, direction]),
        np.vstack([found.products, dimension * project(found.core, direction[None])]),
        (dimension - 1) * missing,
    )


def normals(key: Words, count: int) -> Float64s:
    """Return `count` independent N(0, 1) values, by the transform of Box and Muller.

    It is applied to pairs of random words of a stream under `key`.
    """
    words = np.empty((-(-count // (4 * BLOCK)), 4 * BLOCK), np.uint32)
    for at, row in enumerate(words):
        fill(row, key, _STREAM, at * BLOCK)
    uniform = (words.reshape(2, -1) + 0.5) * 2.0**-32
    radius, angle = np.sqrt(-2 * np.log(uniform[0])), 2 * np.pi * uniform[1]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
