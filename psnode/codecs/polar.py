"""Polar: multilevel polar source coding with shaping; within tenths of a decibel of the least error that a rate in bits allows.

Reproductions are a scale times the points a_k = 2 k - (M - 1), M = 2^levels. The bits of k are coded level by level, blocks of N
values at a time. With G the polar transform, bits b of a level are u G; u is decided one after the other, each given the ones
before it. Where the values say little about u_i it is frozen: drawn at random, from a seed that both sides know, by its
probability under the prior, which is that of reproductions of a Gaussian source. Elsewhere u_i is the likelier bit given the
values, and arithmetic-coded with its prior. The rate-distortion function D = 4^-R is approached as N grows; see docs/results.

Reader and writer compute the priors in the same integers, so that they agree on every machine. Values that share a scale, 2^16
neighbours, are treated as Gaussian; the scale sent is the one that misses them the least, so that ||x - decode|| <= ||x||.
Where the root of their mean square is below 2^-100 they become zeros.

    body   uint8 rate in halves of a bit: 1, 2, 3, 4 or 6; uint8 log2 of the longest block; uint16 0; two uint64 key words
           uint16 upper half of the float32 scale of every 2^16 values, see polarcodes.layout; zeros to a multiple of 4 bytes
           raw bits in uint32, superblock by superblock and level by level, then uint16 words of the coder, polarcodes.coder;
           nothing for superblocks whose scales are 0

Source: Arikan, "Channel polarization", IEEE Trans. IT 2009; Korada, Urbanke, "Polar codes are optimal for lossy source
coding", IEEE Trans. IT 2010; Honda, Yamamoto, "Polar coding without alphabet extension for asymmetric models", ibid. 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from psnode.codecs.base import Bytes, Floats, Shape, Words, readonly
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.polarcodes import designs, stream
from psnode.codecs.polarcodes.layout import superblocks
from psnode.codecs.stages import FlatCodec, padded
from psnode.errors import CodecSpecError, PayloadError

_FIELDS = 20
_LARGEST_SCALE = 0x7F7F
_BLOCKS = tuple(1 << log_length for log_length in range(10, 19, 2))


@dataclass(frozen=True, repr=False)
class Polar(FlatCodec):
    """polar:rate=1,block=16384.

    `rate`: nominal bits a coordinate for Gaussian values: 0.5, 1, 1.5, 2 or 3. `block`: N, the most values that are coded as one:
    2^10, 2^12, 2^14, 2^16 or 2^18; 32 blocks are coded side by side, so that an array shorter than 32 N has shorter ones.
    """

    rate: float = 1.0
    block: int = 16384

    id = "polar"

    def __post_init__(self) -> None:
        """CodecSpecError for a value out of bounds."""
        if self.rate not in designs.RATES or isinstance(self.rate, bool):
            raise CodecSpecError(f"polar: rate={self.rate} must be one of {', '.join(f'{rate:g}' for rate in designs.RATES)}")
        object.__setattr__(self, "rate", float(self.rate))
        if self.block not in _BLOCKS:
            raise CodecSpecError(f"polar: block={self.block} must be one of {', '.join(map(str, _BLOCKS))}")

    @property
    def _code(self) -> stream.Code:
        return stream.Code(self.rate, self.block.bit_length() - 1)

    def _max_body(self, shape: Shape) -> int:
        blocks = list(superblocks(math.prod(shape), self._code.longest))
        found = stream.extent(self._code, blocks, [True] * len(blocks))
        scales = padded(2 * sum(block.scales for block in blocks))
        return _FIELDS + scales + 4 * -(-found.raw // 32) + 2 * stream.allowed_words(found)

    def _encode(self, x: Floats, key: Words, body: Bytes) -> int:
        flat = x.reshape(-1)
        code = self._code
        count = sum(block.scales for block in superblocks(flat.size, code.longest))
        body[:4] = round(2 * code.rate), code.longest, 0, 0
        body[4:_FIELDS].view(np.uint32)[:] = key.view(np.uint32)
        start = _FIELDS + padded(2 * count)
        body[_FIELDS + 2 * count : start] = 0
        limit = body.size - body.size % 4
        raw = np.empty((limit - start) // 4 + 2, np.uint32)
        words = np.empty((body.size - start) // 2 + 2, np.uint16)
        bits, used = stream.write(flat, code, key, body[_FIELDS : _FIELDS + 2 * count].view(np.uint16), raw, words)
        if bits == stream.NOT_FINITE:
            raise_nonfinite(x)
        middle = start + 4 * bits
        body[start:middle].view(np.uint32)[:] = raw[:bits]
        body[middle : middle + 2 * used].view(np.uint16)[:] = words[:used]
        return middle + 2 * used

    def _decode(self, body: Bytes, out: Floats) -> None:
        code = _code_of(body)
        blocks = list(superblocks(out.size, code.longest))
        count = sum(block.scales for block in blocks)
        start = _FIELDS + padded(2 * count)
        if body.size < start or body[_FIELDS + 2 * count : start].any():
            raise PayloadError(f"polar: {body.size} bytes end inside {count} scales, or these are not padded with zeros")
        scales = body[_FIELDS : _FIELDS + 2 * count].view(np.uint16)
        if int(scales.max()) > _LARGEST_SCALE:
            raise PayloadError("polar: a scale is negative or not finite")
        found = stream.extent(code, blocks, stream.live_ones(blocks, scales))
        middle = start + 4 * -(-found.raw // 32)
        coded = body.size - middle
        if coded % 2 or not 4 * found.lanes <= coded <= 2 * stream.allowed_words(found):
            raise PayloadError(f"polar: a body of {body.size} bytes cannot hold {out.size} values at rate {code.rate:g}")
        raw, words = body[start:middle].view(np.uint32), body[middle:].view(np.uint16)
        if found.raw % 32 and int(raw[-1]) >> found.raw % 32:
            raise PayloadError("polar: the raw bits are not padded with zeros")
        key = readonly(body[4:_FIELDS].copy().view(np.uint64))
        if not stream.read(code, key, blocks, scales, raw, words, out.reshape(-1)):
            raise PayloadError(f"polar: {words.size} words are not the code of {out.size} values")


def _code_of(body: Bytes) -> stream.Code:
    """The code that a body names."""
    if body.size < _FIELDS:
        raise PayloadError(f"polar: a body of {body.size} bytes ends inside its fields")
    halves, longest, *zeros = body[:4].tolist()
    if halves / 2 not in designs.RATES or 1 << min(longest, 32) not in _BLOCKS or any(zeros):
        raise PayloadError(f"polar: rate {halves / 2:g} and blocks of 2^{longest} are not known")
    return stream.Code(halves / 2, longest)
