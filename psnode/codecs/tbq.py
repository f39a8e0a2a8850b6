"""Threshold quantisation: every coordinate decodes to -tau, 0 or tau, depending on the thresholds -tau and tau.

A value of tau or more decodes to tau, a value of -tau or less to -tau, and any other value to 0. The codec is meant for error
feedback, which keeps x - decode. A residual grows without limit if the gradient always stays above tau, or always below -tau.

    body   float32 tau, positive; 0 if all coordinates are 0
           blocks: see psnode.codecs.kernels.tbq. At most 1.6 bits per coordinate or 16 bits per value sent

If tau is not given, it is 0.88 times the root mean square. This tau removes the most energy of a Gaussian array, 66 %, and some
energy of any array, because at least one coordinate is as large as the root mean square. The codec is then a contraction. With
a fixed tau it is not.

Source: Strom, "Scalable Distributed DNN Training Using Commodity GPU Cloud Computing", Interspeech 2015.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.bounds import check_real
from psnode.codecs.kernels import tbq as kernels
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.parts import NO_PARTS, PartTable, reached
from psnode.codecs.kernels.root_mean_square import root_mean_square
from psnode.codecs.kernels.ternary import write
from psnode.codecs.kernels.trits import DIGITS
from psnode.codecs.sources import leaves_error, operands
from psnode.codecs.stages import Quantiser, Symbols
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_SIDE = 4
_LEAST, _MOST = 1e-37, 1e38


@dataclass(frozen=True, repr=False)
class Tbq(Quantiser):
    """tbq:tau=. `tau`: the threshold and decoded magnitude; if empty, it is derived from the array's root mean square.

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("tbq:tau=1"), np.array([2, 0.5, -1.5, 0], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [1.0, 0.0, -1.0, 0.0]
    """

    tau: float | None = None

    id = "tbq"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a tau out of bounds."""
        if self.tau is not None:
            check_real(self, "tau", _LEAST, _MOST)

    @property
    def traits(self) -> Traits:
        """The traits of the codec: `one_scale` unless tau is given."""
        return Traits(one_scale=self.tau is None)

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        return _SIDE + 2 * -(-size // kernels.BLOCK) + -(-size // DIGITS)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        found = operands(source, sink)
        x, error = found
        tau, threshold = self._thresholds(x, parts, body[:_SIDE])
        if np.isnan(threshold):
            source.refuse(reached(parts))
        blocks = body[_SIDE:]
        used, done = kernels.encode(x, parts if self.tau else NO_PARTS, tau, threshold, blocks, error, found.apart)
        if done < x.size:
            decoded = np.empty(done if error.size else 0, np.float32)
            kernels.decode(readonly(blocks), tau, decoded, False)
            source.refuse(reached(parts), decoded)
        return _SIDE + used

    def _thresholds(self, x: Floats, parts: PartTable, side: Bytes) -> tuple[np.float32, np.float32]:
        """Write tau to `side`. Return tau and the least magnitude that is sent, which is NaN if `x` or a part is not finite.

        If tau is derived from `x`, the `parts` are first added to `x` in place.
        """
        tau = np.float32(kernels.SHARE * root_mean_square(x, parts) if self.tau is None else self.tau)
        if tau < 0:
            return tau, np.float32(np.nan)
        side.view(np.float32)[0] = tau
        return tau, tau or np.float32(np.inf)

    def _decode(self, body: Bytes, out: Floats) -> None:
        kernels.decode(*self._read(body, out.size), out.reshape(-1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        blocks, tau = self._read(body, out.size)
        kernels.decode(blocks, np.float32(weight * tau), out.reshape(-1), True)

    def _read(self, body: Bytes, size: int) -> tuple[Bytes, np.float32]:
        """Return the blocks and tau of a body. Raises PayloadError unless the body is valid."""
        tau, blocks = _tau(body[:_SIDE]), body[_SIDE:]
        if not kernels.is_valid(blocks, size):
            raise PayloadError(f"tbq: {blocks.size} bytes that are not blocks of {size} coordinates")
        return blocks, tau

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return _SIDE, size, 3

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        side, codes = np.empty(_SIDE, np.uint8), np.empty(x.size, np.uint8)
        threshold = self._thresholds(x, NO_PARTS, side)[1]
        if np.isnan(threshold) or not kernels.to_digits(x, threshold, codes):
            raise_nonfinite(x)
        return Symbols(side, codes, 3)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        _tau(side)
        return size, 3

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        write(np.asarray(codes, np.uint8), _tau(side), out)


def _tau(side: Bytes) -> np.float32:
    if side.size != _SIDE or int(side.view(np.uint32)[0]) >= INFINITY_BITS:
        raise PayloadError("tbq: tau is missing, negative or not finite")
    return np.float32(side.view(np.float32)[0])
