"""Scaled sign: the mean magnitude of a bucket, with the sign of the coordinate. One bit each, and 32 a bucket.

For a bucket v of B coordinates and s = ||v||_1 / B the decoded w has ||v - w||^2 = ||v||^2 - ||v||_1^2 / B, the least of any
multiple of the signs: a contraction (by .3634 on a Gaussian), whichever way zeros go. Biased: for error feedback.

    body   uint32 bucket B, 0 for all coordinates
           float32 s of every bucket, not negative
           signs: see psnode.codecs.binary

Source: Karimireddy, Rebjock, Stich, Jaggi, "Error Feedback Fixes SignSGD and other Gradient Compression Schemes", ICML 2019.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words
from psnode.codecs.binary import Binary, Signed
from psnode.codecs.bounds import check_integer
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.parts import PartTable
from psnode.codecs.kernels.sign import signs_and_means
from psnode.codecs.kernels.sign_lanes import GROUP
from psnode.codecs.payload import MAX_COORDINATES
from psnode.codecs.sources import NO_FLOATS
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import PayloadError

_FIELD = 4


@dataclass(frozen=True, repr=False)
class ScaledSign(Binary):
    """scaledsign:bucket=0. `bucket`: coordinates that share a magnitude; 0: all of them."""

    bucket: int = 0

    id = "scaledsign"

    def __post_init__(self) -> None:
        """CodecSpecError for a bucket out of bounds."""
        check_integer(self, "bucket", 0, MAX_COORDINATES)

    @property
    def traits(self) -> Traits:
        """One scale without buckets."""
        return Traits(one_scale=not self.bucket)

    def _side_nbytes(self, size: int) -> int:
        return _FIELD + 4 * -(-size // (self.bucket or size))

    def _sign(self, x: Floats, parts: PartTable, key: Words, side: Bytes, bits: Bytes, error: Floats) -> Signed:
        bucket = self.bucket or x.size
        side[:_FIELD].view(np.uint32)[0] = self.bucket
        means = side[_FIELD:].view(np.float32)
        wanted = error if bucket % GROUP == 0 or bucket >= x.size else NO_FLOATS
        done = signs_and_means(x, parts, bucket, key, number_of(self.id), bits, means, wanted)
        return Signed(done if wanted.size or done == x.size else 0, later=not wanted.size)

    def _split(self, body: Bytes, size: int) -> int:
        if body.size < _FIELD:
            raise PayloadError(f"scaledsign: a body of {body.size} bytes ends inside the bucket")
        return _FIELD + 4 * -(-size // _bucket(body, size))

    def _levels(self, side: Bytes, size: int) -> tuple[int, Floats, Floats]:
        if int(side[_FIELD:].view(np.uint32).max()) >= INFINITY_BITS:
            raise PayloadError("scaledsign: the magnitude of a bucket is negative or not finite")
        scales = side[_FIELD:].view(np.float32)
        return _bucket(side, size), -scales, scales


def _bucket(side: Bytes, size: int) -> int:
    bucket = int(side[:_FIELD].view(np.uint32)[0])
    if bucket > MAX_COORDINATES:
        raise PayloadError(f"scaledsign: a bucket of {bucket} coordinates exceeds {MAX_COORDINATES}")
    return bucket or size
