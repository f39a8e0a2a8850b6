"""Dithered quantisation (ECDQ): rounding to a lattice that is shifted by a random dither known to sender and receiver.

Let v be a coordinate in units of its bucket's root mean square. Its dither u is a function of key and index, and uniform in
+-step / 2. The integer q = round((v + u) / step) is sent, and q step - u is the decoded value. The error is uniform in +-step /
2 for every v. Therefore E decode = v, and E||decode - v||^2 = step^2 / 12 ||v||^2. Coding q given u costs h(v + u) - log2 step
bits, where h is the differential entropy. For any step, this cost exceeds the least cost of an unbiased codec of Gaussian
values by about a quarter of a bit at most. The chain `dithered+ans` comes near this cost.

Within a block of 512 coordinates the |u| of the coordinates j, 128 + j, 256 + j, 384 + j lie in the four quarters of 0..step /
2, in random order. Each u is uniform as above, but the four values of u depend on each other. The symbols are sorted by
quarter, so that they form four runs of equal length, each with its own distribution. An adaptive coder then comes within .005
bit of the cost of coding q given u. A symbol stands for q or -q, namely the one that is likelier to be positive given the sign
of u. Symbols are never clipped.

Without an entropy stage, kernels generated from a formula write codes in the order of the coordinates. With an entropy stage,
kernels written by hand write the symbols in the order described above.

    body   float32 step; uint32 bucket B; two uint64 key words
           float32 root mean square of every bucket
           uint8 bits per code for every bucket, 0..15; zeros to a multiple of 4 bytes
           codes of every bucket: 0 for 0, then 1 for the sign that u favours, 2 for the other sign, ...; see kernels.planes

    side information before a lossless stage   step, bucket and key; uint32 size of the alphabet, uint32 number of escaped
                                               integers; the root mean squares; int16 escaped integers (symbol 255), zeros to a
                                               multiple of 4 bytes

Source: Ziv, "On universal quantization", IEEE Trans. IT 1985; Zamir, Feder, "On universal quantization by randomized uniform /
lattice quantizers", IEEE Trans. IT 1992.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import Bytes, Codes, Floats, Shape, Words, readonly
from psnode.codecs.bounds import check_integer, check_real
from psnode.codecs.kernels import dithered_loops as loops
from psnode.codecs.kernels.dithered_loops import Lattice
from psnode.codecs.kernels.finite import INFINITY_BITS, raise_nonfinite
from psnode.codecs.kernels.planes import BLOCK, most_nbytes
from psnode.codecs.rng import Draws
from psnode.codecs.rows.codec import Generated, coder_of, interpreted
from psnode.codecs.rows.coder import Coder
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.dithered import DitheredRows
from psnode.codecs.stages import Quantiser, Symbols, padded
from psnode.codecs.table import number_of
from psnode.codecs.traits import Traits
from psnode.errors import CodecSpecError, PayloadError

MIN_STEP, MAX_STEP = 2.0**-5, 2.0**6
MAX_BUCKET = 65536
_FIELDS = 24
_COUNTS = 8
_SURE_ESCAPE = 127  # integers with a code of 255 or more have a larger magnitude


@dataclass(frozen=True, repr=False)
class Dithered(Generated, Quantiser):
    """dithered:step=1,bucket=4096.

    `step`: the distance between lattice points in units of the bucket's root mean square, 2^-5..2^6; the variance omega is
    step^2 / 12. `bucket`: the number of coordinates that share a scale, a multiple of 512 up to 65536.

    The error of a value is at most step / 2 times the root mean square:

    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("dithered:step=0.5"), np.arange(-256, 256, dtype=np.float32)
    >>> error = x - codec.decode(codec.encode(x, np.random.default_rng(1)))
    >>> bool(np.abs(error).max() <= 0.25001 * np.sqrt(np.mean(x**2)))
    True
    """

    step: float = 1.0
    bucket: int = 4096

    id = "dithered"
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        """Raise CodecSpecError for a value out of bounds."""
        check_real(self, "step", MIN_STEP, MAX_STEP)
        check_integer(self, "bucket", BLOCK, MAX_BUCKET)
        if self.bucket % BLOCK:
            raise CodecSpecError(f"dithered: bucket={self.bucket} must be a multiple of {BLOCK}")

    def _largest(self, size: int) -> int:
        """Return an upper bound of |q| for an array of `size` values.

        No value exceeds the square root of its bucket's number of coordinates, times the root mean square.
        """
        return math.ceil(1.001 * math.sqrt(min(size, self.bucket)) / self.step) + 1

    @property
    def most_bits(self) -> int:
        """The largest possible number of bits of a code."""
        return (2 * self._largest(self.bucket)).bit_length()

    def _max_body(self, shape: Shape) -> int:
        size = math.prod(shape)
        buckets = -(-size // self.bucket)
        bits = (2 * self._largest(size)).bit_length()
        return _FIELDS + 4 * buckets + padded(buckets) + most_nbytes(size, bits)

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: DitheredRows."""
        return DitheredRows(self)

    def _lattice(self) -> Lattice:
        return Lattice(float(np.float32(self.step)), self.bucket)

    def _draws(self, key: Words) -> Draws:
        return Draws(key, number_of(self.id))

    def _write_fields(self, key: Words, body: Bytes) -> None:
        body[:4].view(np.float32)[0] = self.step
        body[4:8].view(np.uint32)[0] = self.bucket
        body[8:_FIELDS].view(np.uint32)[:] = key.view(np.uint32)

    def check_scales(self, body: Bytes, size: int) -> None:
        """Raise PayloadError unless a body of codes starts with valid fields and scales for `size` coordinates."""
        _, bucket, _ = _fields(body)
        buckets = -(-size // bucket)
        _check_scales(body[_FIELDS : _FIELDS + 4 * buckets], buckets)

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        self.check_scales(body, size)
        step, bucket, _ = _fields(body)
        own = (step, bucket) == (float(np.float32(self.step)), self.bucket)
        coder = coder_of(self) if own else interpreted(Dithered(step, bucket))
        coder.check(body, size)
        return coder, body

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        side = _FIELDS + _COUNTS + 4 * -(-size // self.bucket) + padded(2 * self._max_escapes(size))
        return side, size, min(loops.ESCAPE + 1, 2 * self._largest(size) + 1)

    def _max_escapes(self, size: int) -> int:
        """Return an upper bound of the number of escaped integers in an array of `size` values.

        At most a share 1 / t^2 of all values exceeds t times the root mean square.
        """
        return min(size, int(size / (_SURE_ESCAPE * self.step) ** 2) + 1) if 2 * self._largest(size) >= loops.ESCAPE else 0

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        start = _FIELDS + _COUNTS + 4 * -(-x.size // self.bucket)
        side = np.empty(self._max_symbols(x.size)[0], np.uint8)
        self._write_fields(key, side)
        rms, escapes = side[_FIELDS + _COUNTS : start].view(np.float32), side[start:].view(np.int16)
        codes = np.empty(x.size, np.uint8)
        found, top = loops.encode_symbols(x, self._lattice(), self._draws(key), rms, codes, escapes)
        if found == loops.NOT_FINITE:
            raise_nonfinite(x)
        side[_FIELDS : _FIELDS + _COUNTS].view(np.uint32)[:] = top + 1, found
        escapes[found:] = 0
        return Symbols(side[: start + padded(2 * found)], codes, top + 1)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        _, bucket, _ = _fields(side)
        buckets = -(-size // bucket)
        start = _FIELDS + _COUNTS + 4 * buckets
        alphabet, escapes = side[_FIELDS : _FIELDS + _COUNTS].view(np.uint32).tolist() if side.size >= start else (0, 0)
        if not 1 <= alphabet <= loops.ESCAPE + 1 or escapes > size or side.size != start + padded(2 * escapes):
            raise PayloadError(f"dithered: {side.size} bytes of side information for {size} coordinates, {alphabet=}, {escapes=}")
        _check_scales(side[_FIELDS + _COUNTS : start], buckets)
        if side[start + 2 * escapes :].any():
            raise PayloadError("dithered: the escaped integers are not padded with zeros")
        return size, alphabet

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        step, bucket, key = _fields(side)
        start = _FIELDS + _COUNTS + 4 * -(-out.size // bucket)
        escapes = side[start:].view(np.int16)[: int(side[_FIELDS + 4 : _FIELDS + _COUNTS].view(np.uint32)[0])]
        rms = side[_FIELDS + _COUNTS : start].view(np.float32)
        symbols = readonly(codes.view(np.uint8))
        used = loops.decode_symbols(Lattice(step, bucket), self._draws(key), rms, symbols, escapes, out)
        if used != escapes.size:
            raise PayloadError(f"dithered: {escapes.size} escaped integers do not fit the symbols")


def _fields(body: Bytes) -> tuple[float, int, Words]:
    """Return the step, the bucket and the key that `body` starts with. Raises PayloadError unless step and bucket are valid."""
    if body.size < _FIELDS:
        raise PayloadError(f"dithered: a body of {body.size} bytes ends inside its fields")
    step, bucket = float(body[:4].view(np.float32)[0]), int(body[4:8].view(np.uint32)[0])
    if not MIN_STEP <= step <= MAX_STEP or not BLOCK <= bucket <= MAX_BUCKET or bucket % BLOCK:
        raise PayloadError(f"dithered: {step=}, {bucket=} are not valid")
    return step, bucket, readonly(body[8:_FIELDS].copy().view(np.uint64))


def _check_scales(data: Bytes, buckets: int) -> None:
    """Raise PayloadError unless the root mean squares are finite and not negative."""
    if data.size != 4 * buckets or int(data.view(np.uint32).max()) >= INFINITY_BITS:
        raise PayloadError("dithered: a scale is missing, negative or not finite")
