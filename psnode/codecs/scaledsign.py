"""Scaled sign: every coordinate decodes to its sign times the mean magnitude of its bucket. A coordinate takes 1 bit.

Let v be a bucket of B coordinates. It decodes to w, the signs of v times s = ||v||_1 / B. Then ||v - w||^2 = ||v||^2 -
||v||_1^2 / B, which is the least error of any multiple of the signs. The codec is a contraction, for any choice of the signs of
zeros. The error is .3634 ||v||^2 for Gaussian values. The codec is biased, and meant for error feedback.

    body   uint32 bucket B; 0: one bucket of all coordinates
           float32 s of every bucket, not negative
           signs: see psnode.codecs.one_bit_base

Source: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes, Words, readonly
from psnode.codecs.base import Sink, Source
from psnode.codecs.bounds import check_integer
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.parts import reached
from psnode.codecs.kernels.sign import apply, means_by_rows, means_of
from psnode.codecs.one_bit_base import Binary, Levels
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.rows.codec import coder_of
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.signs import ScaledSignRows
from psnode.codecs.rows.language import ROW
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import NO_FLOATS, operands
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_FIELD = 4


@dataclass(frozen=True, repr=False)
class ScaledSign(Binary):
    """scaledsign:bucket=0. `bucket`: the number of coordinates that share a magnitude; 0: all coordinates.

    Each coordinate decodes to its sign times the mean magnitude:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("scaledsign"), np.array([1, -2, 3, -4], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [2.5, -2.5, 2.5, -2.5]
    """

    bucket: int = 0

    id = "scaledsign"

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a bucket out of bounds."""
        check_integer(self, "bucket", 0, MAX_COORDINATES)

    @property
    def traits(self) -> Traits:
        """The traits of the codec: `one_scale` if bucket=0."""
        return Traits(one_scale=not self.bucket)

    def _side_nbytes(self, size: int) -> int:
        return _FIELD + 4 * -(-size // (self.bucket or size))

    def formula(self) -> Formula | None:
        """Return the formula of the codec's kernels, ScaledSignRows, if bucket=0, else None."""
        return None if self.bucket else ScaledSignRows(self)

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError unless `body` starts with the valid fields of an array coded as one bucket."""
        self._levels(body[: _FIELD + 4], 1)

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return super()._fuses(source, sink) and not (self.bucket and isinstance(sink, InnerProducts))

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        if not self.bucket:
            return super()._encode(source, key, body, sink)
        parts = source.table()
        x, error = operands(source, sink)
        used, start = self._max_body(source.shape), self._side_nbytes(x.size)
        means, bits = body[_FIELD:start].view(np.float32), body[start:used]
        sums = coder_of(ScaledSign()).code_and_sum(x, key, body[start - _FIELD - 4 : used], NO_FLOATS, parts)
        if sums is None:
            source.refuse(reached(parts))
        body[:_FIELD].view(np.uint32)[0] = self.bucket
        if self.bucket % ROW == 0:
            means_by_rows(sums[0], x.size, self.bucket, means)
        else:
            means_of(x, self.bucket, means)
        if error.size:
            apply(readonly(bits), self.bucket, readonly(means), readonly(-means), x, error)
        return used

    def _split(self, body: Bytes, size: int) -> int:
        if body.size < _FIELD:
            raise PayloadError(f"scaledsign: a body of {body.size} bytes ends inside the bucket")
        return _FIELD + 4 * -(-size // _bucket(body, size))

    def _levels(self, side: Bytes, size: int) -> Levels:
        if int(side[_FIELD:].view(np.uint32).max()) >= INFINITY_BITS:
            raise PayloadError("scaledsign: the magnitude of a bucket is negative or not finite")
        scales = side[_FIELD:].view(np.float32)
        return Levels(_bucket(side, size), -scales, scales)


def _bucket(side: Bytes, size: int) -> int:
    bucket = int(side[:_FIELD].view(np.uint32)[0])
    if bucket > MAX_COORDINATES:
        raise PayloadError(f"scaledsign: a bucket of {bucket} coordinates exceeds {MAX_COORDINATES}")
    return bucket or size
