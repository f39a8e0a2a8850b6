"""Fourier ATOMO: cosines are sampled with the probabilities of least variance for a given expected number of cosines.

The flattened array is cut into blocks. An orthonormal discrete cosine transform (DCT-II) turns each block into coefficients,
its components along cosines (the atoms). The coefficients are sampled and sent as entry-wise ATOMO does with coordinates
(psnode.codecs.entrywise): c_i is sent with probability p_i = min(1, |c_i| / V), where the p_i add up to the budget, and decodes
to c_i / p_i. The decoder applies the inverse transform. E decode = x up to float32 rounding, and E||decode - x||^2 = sum_i (V -
|c_i|) |c_i| over |c_i| < V, because the transform preserves lengths. If the last block would be incomplete, the remaining
coordinates are cut into blocks of smaller powers of two, the largest first.

    uint8      log2 of the block
    uint8      e: coefficients are sent unchanged if 0, divided by 2^8 if 1, times 2^40 if 2, so that they fit float32's range
    uint16     0
    float32    only if e is 1: the limit of decoded magnitudes, which keeps x - decode within float32's range
    the rest   the body of entrywise for the coefficients, block after block

Source: Wang, Sievert, Charles, Liu, Wright, Papailiopoulos, "ATOMO: Communication-efficient Learning via Atomic
Sparsification", NeurIPS 2018, which leaves this basis to future work; Ahmed, Natarajan, Rao, "Discrete cosine transform", IEEE
Trans. Computers 1974.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codec, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_real
from psnode.codecs.entrywise import LEAST, Entrywise
from psnode.codecs.kernels.cosines import LONGEST, coefficients, factors, restore
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.kernels.norms import NOT_FINITE, max_norm
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.sources import Values
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

SHORTEST = 64
_FIELDS = 4
_SCALES = (1.0, 2.0**-8, 2.0**40)
_LARGEST = float(np.finfo(np.float32).max)
_LARGE, _SMALL = 2.0**120, 2.0**-100  # a coefficient is at most 2^6.5 times the largest value


@dataclass(frozen=True, repr=False)
class Fourier(Codec):
    """fourier:budget=,block=64.

    `budget`: the expected number of coefficients sent if at least 1, otherwise their share of all coefficients. The default is
    a share of 1/16, which takes 0.4 bits per coordinate, like entrywise. On Gaussian values, the error equals the error of
    entrywise. It is smaller if neighbouring values are alike, and larger if a few values stand out or most values are zero.
    `block`: the number of neighbours transformed together, a power of two from 64 to 4096.

    A constant array has one non-zero coefficient per block, which is sent with probability 1:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("fourier"), np.full(64, 2, np.float32)
    >>> bool(np.allclose(codec.decode(codec.encode(x, np.random.default_rng(1))), x))
    True
    """

    budget: float | None = None
    block: int = 64

    id = "fourier"
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        if self.budget is not None:
            check_real(self, "budget", LEAST, MAX_COORDINATES)
        if isinstance(self.block, bool) or self.block not in _BLOCKS:
            raise CodecSpecError(f"fourier: block={self.block} must be one of {', '.join(map(str, _BLOCKS))}")

    def omega(self, x: Floats) -> float:
        """Return E||decode(encode(x)) - x||^2 / ||x||^2 for this x, except for float32 rounding, or 0 for a zero array."""
        return self._sampler.omega(self._transformed(np.ascontiguousarray(x))[2]) if x.size else 0.0

    @property
    def _sampler(self) -> Entrywise:
        return Entrywise(self.budget)

    def _transformed(self, x: Floats) -> tuple[int, float, Floats]:
        """Return the field e, the limit of decoded magnitudes, and the coefficients to send, scaled and flat.

        Raises NonFiniteGradientError.
        """
        flat = x.reshape(-1)
        largest = max_norm(readonly(flat))
        if largest == NOT_FINITE:
            raise_nonfinite(x)
        e = 1 if largest >= _LARGE else 2 if largest < _SMALL else 0
        out = np.empty(x.size, np.float32)
        coefficients(readonly(flat), self.block, _SCALES[e], factors(), out)
        return e, _LARGEST - largest, readonly(out)

    def _max_body(self, shape: Shape) -> int:
        return 2 * _FIELDS + self._sampler._max_body(shape)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        e, limit, sent = self._transformed(source.array())
        body[:_FIELDS] = self.block.bit_length() - 1, e, 0, 0
        start = _FIELDS
        if e == 1:
            start += _FIELDS
            body[_FIELDS:start].view(np.float32)[0] = limit
            if (
                float(body[_FIELDS:start].view(np.float32)[0]) > limit
            ):  # undo rounding up, because the limit plus the largest value might overflow
                body[_FIELDS:start].view(np.uint32)[0] -= 1
        return start + self._sampler._encode(Values(sent), key, body[start:], NOTHING)

    def _restore(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        if body.size < 2 * _FIELDS:
            raise PayloadError(f"fourier: a body of {body.size} bytes ends inside its fields")
        longest, e, *zeros = body[:_FIELDS].tolist()
        if 1 << min(longest, 32) not in _BLOCKS or e >= len(_SCALES) or any(zeros):
            raise PayloadError(f"fourier: the fields {longest}, {e}, {zeros} are not known")
        start, limit = _FIELDS, _LARGEST
        if e == 1:
            start, limit = 2 * _FIELDS, float(body[_FIELDS : 2 * _FIELDS].view(np.float32)[0])
            if not 0 <= limit <= _LARGEST:
                raise PayloadError(f"fourier: the limit is {limit}")
        entries = self._sampler._entries(body[start:], out.shape)
        restore(entries.indices, entries.values, 1 << longest, 1 / _SCALES[e], limit, factors(), weight, out.reshape(-1))

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._restore(body, out, np.float32(0))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        if weight:
            self._restore(body, out, weight)
        else:
            super()._decode_add(body, out, weight)


_BLOCKS = tuple(SHORTEST << power for power in range((LONGEST // SHORTEST).bit_length()))
