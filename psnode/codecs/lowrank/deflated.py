"""All terms of a matrix, nearly the singular ones: the largest from a random subspace, the others in float32.

sum u_i (u_i^T A) is A for any orthonormal basis u of the short side: the choice of the basis decides how much an unbiased
sample of such terms varies, and never its mean. So the cheapest basis will do that has nearly the least
sum of lengths ||u_i^T A||:

* `sketch` (psnode.codecs.lowrank.randomised) finds the largest terms, in float64: its k vectors B, orthonormal;
* I - F F^T is a reflection that takes B to the first k coordinates, so that its other columns are a basis of the complement of B.
  Along these A is A': the remainder, whose Gram matrix is formed in float32, and whose eigenvectors are those of `eigenbasis`.

Without the first step the second would not do: squares that are to add up in float32 leave nothing of values below 2^-12 of
the largest, and of transformers' gradients those are most of the sum. With it they are measured by the largest of those
left. Terms that rounding hides there too keep the probability of LEAST times that one, so that none is forgotten; those
below 2^-22 of the largest of all are float32's own rounding of it, and are dropped as `spectrum` drops them. A term is made
from A itself in float64.

The reflection: with B's first k columns B_1^T = W S Z^T (k x k), F = (B^T Z + [W; 0]) / sqrt(1 + S) gives
(I - F F^T) B^T = [-W Z^T; 0].

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

EXACT_BELOW = 96  # entries of the short side: the exact spectrum is as fast up to this
LEAST = 2.0**-12.5  # of the largest value in the rest: the root of half a unit in the last place of its square
_BLOCK = 1 << 21  # values that are taken to the complement at a time
_SAFE = 30  # binary exponents of magnitudes whose squares, and values far below them, float32 holds


@dataclass(frozen=True, slots=True)
class Deflated:
    """Terms of a matrix, which add up to it but for rounding."""

    head: Spectrum
    rest: Eigenbasis
    """Of the Gram matrix of what the head leaves."""
    reflector: Float64s
    """(short side, k): F."""
    order: Int64s
    """Places of the terms, descending by value: the head's come first, then the rest's."""
    values: Float64s
    """(r,), float64, positive, descending: the lengths of the terms as far as they are known."""
    excess: float = 0.0

    def terms(self, chosen: npt.ArrayLike) -> tuple[Float64s, Float64s]:
        """Factors (left, right) of the terms with the indices `chosen`: shapes (k, m) and (k, n), float64."""
        short = self._vectors(self.order[np.asarray(chosen, dtype=np.int64)])
        return self.head.core.factors(short, project(self.head.core, short))

    def lengths(self) -> Float64s:
        """The lengths of the terms themselves, (r,), by making them all: as much work as an exact spectrum."""
        long = project(self.head.core, self._vectors(self.order))
        return np.asarray(np.linalg.norm(long, axis=1))

    def _vectors(self, places: Int64s) -> Float64s:
        """The vectors of the short side at these places, (k, short side)."""
        found, known = np.empty((places.size, len(self.reflector))), len(self.head.values)
        inside = places < known
        found[inside] = self.head.vectors[places[inside]]
        turned = self.rest.vectors(places[~inside] - known)
        reflected = -(turned @ self.reflector[known:]) @ self.reflector.T
        reflected[:, known:] += turned
        found[~inside] = reflected
        return found


def deflated(matrix: Floats, count: int, key: Words) -> Spectrum | Deflated:
    """All terms of `matrix`: at least `count` of them those of the largest singular values, nearly, and all others.

    Deterministic in `matrix` and `key` for a machine and library version, on one BLAS thread. A matrix of fewer than 96 rows or
    columns, zero ones not counted, is decomposed exactly. Raises NonFiniteGradientError.
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
    """F of the orthonormal rows `vectors`, (k, n)."""
    count = len(vectors)
    left, cosines, right = np.linalg.svd(vectors[:, :count].T)
    turned = vectors.T @ right.T
    turned[:count] += left
    return np.asarray(turned / np.sqrt(1 + cosines))


def _gram_of_rest(head: Spectrum, reflector: Floats, exponent: int) -> Floats:
    """A' A'^T / 4^exponent, float32: of the core of `head`, its short side in front, along the complement of its vectors."""
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
