"""Natural compression: every magnitude is rounded at random, without bias, to one of the two nearest powers of two.

A magnitude 2^e (1 + f) is rounded to 2^(e+1) with probability f, otherwise to 2^e. E decode = v, and E||decode - v||^2 <=
||v||^2 / 8. No norm is needed. A code has as many bits as the range of the exponents requires: 6 for a million Gaussian values,
and at most 9.

    body   int16 t, the largest exponent; uint16 L, the number of exponents from t down (0..255)
           codes of bit_length(2 L) bits, see kernels.planes: 0 for 0, 1 + 2 j + (1 if negative) for +-2^(t - j)

A magnitude rounded to 2^128 decodes to the largest float32. Magnitudes below 2^(t - L + 1) exist only if the exponents span
more than 255. They are rounded to 2^(t - L + 1) or to 0, also without bias.

Source: Horvath, Ho, Horvath, Sahu, Canini, Richtarik, "Natural Compression for Distributed Deep Learning", MSML 2022.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Words, readonly
from psnode.codecs.kernels.packed import bits_for, pack, unpack
from psnode.codecs.kernels.planes import packed_nbytes
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.natural import MAX_EXPONENTS, NaturalRows
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols, codes_like
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_FIELDS = 4
_HIGHEST, _LOWEST = 128, -149


@dataclass(frozen=True, repr=False)
class Natural(Generated, Quantiser):
    """natural: no parameters, omega <= 1/8.

    Powers of two are decoded exactly:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("natural"), np.array([0.5, -4, 0, 2], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [0.5, -4.0, 0.0, 2.0]
    """

    id = "natural"
    traits = Traits(unbiased=True)

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: NaturalRows."""
        return NaturalRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError if the fields hold exponents that float32 does not have."""
        _alphabet(body)

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        self.check_fields(body)
        coder = coder_of(self)
        coder.check(body, size)
        return coder, body

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _FIELDS, size, 2 * MAX_EXPONENTS + 1

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body = np.empty(self._max_body(x.shape), np.uint8)
        used = self._encode(Values(x), key, body, NOTHING)
        alphabet = _alphabet(body)
        codes = codes_like(x.size, alphabet)
        unpack(body[_FIELDS:used], codes, alphabet, self.id)
        return Symbols(body[:_FIELDS], codes, alphabet)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        alphabet = _alphabet(side)
        if side.size != _FIELDS:
            raise PayloadError(f"natural: {side.size} bytes of side information instead of {_FIELDS}")
        return size, alphabet

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        alphabet = _alphabet(side)
        body = np.empty(_FIELDS + packed_nbytes(out.size, bits_for(alphabet)), np.uint8)
        body[:_FIELDS] = side
        pack(codes, alphabet, body[_FIELDS:])
        self._decode(readonly(body), out)


def _alphabet(body: Bytes) -> int:
    """Return the number of symbols, from the fields at the start of `body`. PayloadError unless float32 has these exponents."""
    if body.size < _FIELDS:
        raise PayloadError(f"natural: a body of {body.size} bytes ends inside its fields")
    top, exponents = int(body[:2].view(np.int16)[0]), int(body[2:_FIELDS].view(np.uint16)[0])
    if not _LOWEST <= top <= _HIGHEST or exponents > min(MAX_EXPONENTS, top - _LOWEST + 1) or not (exponents or not top):
        raise PayloadError(f"natural: exponents from {top} down, {exponents} of them, are not those of float32 values")
    return 2 * exponents + 1
