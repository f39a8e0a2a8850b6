"""All terms of a matrix, close to its singular terms.

The largest come from a random subspace, the others from float32 arithmetic.

For any orthonormal basis u_i of the short side of a matrix A, sum u_i (u_i^T A) = A. The basis determines the variance of an
unbiased sample of the terms, but not its mean. Therefore a basis that is cheap to compute is enough, if the sum of its lengths
||u_i^T A|| is nearly the least possible. It is computed in two steps:

* `sketch` (psnode.codecs.lowrank.randomised) finds the largest terms in float64, with k orthonormal vectors B.
* The reflection I - F F^T takes B to the first k coordinates, so that the other columns of the reflection are a basis of B's
  complement. In this basis the remainder of A is A'. The Gram matrix of A' is formed in float32, and `eigenbasis` returns its
  eigenvectors.

The first step is needed because sums of squares in float32 lose singular values below 2^-12 of the largest. For gradients of
transformers such values make up most of the sum of lengths. After the first step, precision is relative to the largest singular
value of the remainder. Terms that are still hidden by rounding get LEAST times this value as their length, so that every term
has a positive probability. Terms below 2^-22 of the largest of all terms are within the rounding error of the largest in
float32, and are dropped as in `spectrum`. The terms themselves are computed from A in float64.

The reflection is found from the first k columns of B, whose singular value decomposition is B_1^T = W S Z^T (k x k). F = (B^T Z
+ [W; 0]) / sqrt(1 + S) then gives (I - F F^T) B^T = [-W Z^T; 0].

Source: Schreiber and Parlett, "Block reflectors: theory and computation", SIAM J. Numer. Anal. 25(1), 1988.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Float64s, Floats, Int64s, Words
from psnode.codecs.lowrank.eigen32 import Eigenbasis, eigenbasis
from psnode.codecs.lowrank.randomised import sketch
from psnode.codecs.lowrank.spectrum import NOISE, Spectrum, project, spectrum, trim

EXACT_BELOW = 96  # entries of the short side; for smaller matrices the exact spectrum is as fast
LEAST = 2.0**-12.5  # relative to the largest value of the remainder: the root of half a unit in the last place of its square
_BLOCK = 1 << 21  # values that are projected onto the complement at a time
_SAFE = 30  # largest binary exponent of values for which float32 holds the squares, also of far smaller values


@dataclass(frozen=True, slots=True)
class Deflated:
    """The terms of a matrix. Their sum is the matrix up to rounding."""

    head: Spectrum
    rest: Eigenbasis
    """The eigenbasis of the Gram matrix of the remainder, which the head leaves."""
    reflector: Float64s
    """(short side, k): F."""
    order: Int64s
    """Indices of the terms in falling order of their values, in the list of the head's terms followed by the rest's."""
    values: Float64s
    """(r,), float64, positive, descending: the lengths of the terms as far as they are known."""
    excess: float = 0.0

    def terms(self, chosen: npt.ArrayLike) -> tuple[Float64s, Float64s]:
        """Return the factors (left, right) of the k terms with the indices `chosen`: float64, of shapes (k, m) and (k, n)."""
        short = self._vectors(self.order[np.asarray(chosen, dtype=np.int64)])
        return self.head.core.factors(short, project(self.head.core, short))

    def lengths(self) -> Float64s:
        """Return the exact lengths of the terms, (r,). All terms are computed, which takes as long as an exact spectrum."""
        long = project(self.head.core, self._vectors(self.order))
        return np.asarray(np.linalg.norm(long, axis=1))

    def _vectors(self, places: Int64s) -> Float64s:
        """Return the vectors of the short side with the indices `places`, as rows of (k, short side)."""
        found, known = np.empty((places.size, len(self.reflector))), len(self.head.values)
        inside = places < known
        found[inside] = self.head.vectors[places[inside]]
        turned = self.rest.vectors(places[~inside] - known)
        reflected = -(turned @ self.reflector[known:]) @ self.reflector.T
        reflected[:, known:] += turned
        found[~inside] = reflected
        return found


def deflated(matrix: Floats, count: int, key: Words) -> Spectrum | Deflated:
    """Return all terms of `matrix`. At least `count` of them are close to the terms of the largest singular values.

    With one BLAS thread the result depends only on `matrix`, `key`, machine and library version. A matrix of fewer than 96
    non-zero rows or columns is decomposed exactly. Raises NonFiniteGradientError.
    """
    if min(trim(matrix).values.shape) < EXACT_BELOW:
        return spectrum(matrix)
    head = sketch(matrix, count, key)
    reflector = _reflector(head.vectors)
    exponent = math.frexp(head.values[0])[1]
    gram = _gram_of_rest(head, reflector.astype(np.float32), exponent if abs(exponent) > _SAFE else 0)
    rest = eigenbasis(gram)
    return _sorted(head, rest, reflector, exponent if abs(exponent) > _SAFE else 0)


def _sorted(head: Spectrum, rest: Eigenbasis, reflector: Float64s, exponent: int) -> Deflated:
    least = LEAST**2 * max(float(rest.squares[0]), 0.0)
    values = np.append(head.values, np.ldexp(np.sqrt(np.maximum(rest.squares, least)), exponent))
    order = np.argsort(-values, kind="stable")
    order = order[values[order] > NOISE * values[order[0]]]
    return Deflated(head, rest, reflector, order, values[order])


def _reflector(vectors: Float64s) -> Float64s:
    """Return the matrix F, shape (n, k), of the reflection I - F F^T that takes the rows `vectors` to the first k coordinates.

    `vectors` (k, n) must be orthonormal.
    """
    count = len(vectors)
    left, cosines, right = np.linalg.svd(vectors[:, :count].T)
    turned = vectors.T @ right.T
    turned[:count] += left
    return np.asarray(turned / np.sqrt(1 + cosines))


def _gram_of_rest(head: Spectrum, reflector: Floats, exponent: int) -> Floats:
    """Return A' A'^T / 4^exponent, float32, where A' is the remainder of the core of `head`; see the module's docstring.

    The core is read with its short side as rows.
    """
    values, known, tall = head.core.values, len(head.values), head.core.tall
    short, long = min(values.shape), max(values.shape)
    total, outer = np.zeros((short - known, short - known), np.float32), np.ascontiguousarray(reflector[known:])
    for at in range(0, long, step := max(1, _BLOCK // short)):
        block = values[at : at + step] if tall else values[:, at : at + step]
        if exponent:
            block = np.ldexp(block, -exponent).astype(np.float32, copy=False)
        if tall:
            long_by_short = block[:, known:] - (block @ reflector) @ outer.T
            total += long_by_short.T @ long_by_short
        else:
            short_by_long = block[known:] - outer @ (reflector.T @ block)
            total += short_by_long @ short_by_long.T
    return total
