"""IEEE half precision: 16 bits a coordinate, rounded to nearest even; values beyond +-65504 become +-65504.

Magnitudes of 2^-14 and more keep 11 significant bits, smaller ones are multiples of 2^-24, and those up to 2^-25 become 0.

    body   uint16 a coordinate; infinity and NaN do not occur
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Floats, Words32
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.sixteen import Halves, SixteenBits

_BLOCK = 512
_INFINITY = 0x7C00


@dataclass(frozen=True, repr=False)
class Fp16(SixteenBits):
    """fp16, without parameters."""

    id = "fp16"
    limit = _INFINITY

    def _narrow(self, x: Floats, codes: Halves) -> bool:
        return _narrow(x, codes)

    def _widen(self, codes: Halves, out: Floats) -> None:
        _widen(codes, out)

    def _widen_add(self, codes: Halves, out: Floats, weight: np.float32) -> None:
        _widen_add(codes, out, weight)


@kernel
def _narrow(x: Floats, codes: Halves) -> bool:
    """Round to half precision; whether all is finite. 2^-14 is 0x38800000, 65504 is 0x477FE000, 0.5 has an ulp of 2^-24."""
    bits = x.view(np.uint32)
    top = np.uint32(0)
    sums = np.empty(_BLOCK, np.float32)
    sum_bits = sums.view(np.uint32)
    for start in range(0, x.size, _BLOCK):
        part, source, target = x[start : start + _BLOCK], bits[start : start + _BLOCK], codes[start : start + _BLOCK]
        for i in range(part.size):
            sums[i] = np.float32(abs(part[i])) + np.float32(0.5)
        for i in range(source.size):
            magnitude = np.uint32(source[i] & np.uint32(0x7FFFFFFF))
            top = max(top, magnitude)
            kept = min(magnitude, np.uint32(0x477FE000))
            odd = np.uint32((kept >> np.uint32(13)) & np.uint32(1))
            normal = np.uint32(np.uint32(kept + np.uint32(0xFFF) + odd) - np.uint32(112 << 23)) >> np.uint32(13)
            small = np.uint32(sum_bits[i] - np.uint32(0x3F000000))
            code = small if magnitude < np.uint32(0x38800000) else normal
            target[i] = np.uint16(code | (np.uint32(source[i] >> np.uint32(16)) & np.uint32(0x8000)))
    return bool(top < np.uint32(0x7F800000))


@inlined
def _widen_block(codes: Halves, words: Words32, normal: Floats, out: Floats) -> None:
    """Up to 512 codes to float32. `words` and `normal`: the same memory, for the values that are not below 2^-14."""
    for i in range(codes.size):
        code = np.uint32(codes[i])
        sign = np.uint32((code & np.uint32(0x8000)) << np.uint32(16))
        words[i] = np.uint32(np.uint32((code & np.uint32(0x7FFF)) << np.uint32(13)) + np.uint32(112 << 23)) | sign
    for i in range(codes.size):
        half = np.int32(codes[i])
        small = np.float32(np.int32(half & np.int32(0x3FF))) * np.float32(2.0**-24)
        small = -small if half & np.int32(0x8000) else small
        out[i] = normal[i] if half & np.int32(_INFINITY) else small


@kernel
def _widen(codes: Halves, out: Floats) -> None:
    normal = np.empty(_BLOCK, np.float32)
    words = normal.view(np.uint32)
    for start in range(0, out.size, _BLOCK):
        _widen_block(codes[start : start + _BLOCK], words, normal, out[start : start + _BLOCK])


@kernel
def _widen_add(codes: Halves, out: Floats, weight: np.float32) -> None:
    normal, values = np.empty(_BLOCK, np.float32), np.empty(_BLOCK, np.float32)
    words = normal.view(np.uint32)
    for start in range(0, out.size, _BLOCK):
        target = out[start : start + _BLOCK]
        _widen_block(codes[start : start + _BLOCK], words, normal, values)
        for i in range(target.size):
            target[i] += weight * values[i]
