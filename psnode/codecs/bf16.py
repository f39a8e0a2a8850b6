"""bfloat16: the upper half of a float32, 16 bits a coordinate, rounded to nearest even.

Keeps 8 significant bits and float32's range; values that would round to infinity become the largest, 0x7F7F.

    body   uint16 a coordinate; infinity and NaN do not occur
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from psnode.codecs.arrays import Floats
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.sixteen import Halves, SixteenBits

_BLOCK = 512


@dataclass(frozen=True, repr=False)
class Bf16(SixteenBits):
    """bf16, without parameters."""

    id = "bf16"
    limit = 0x7F80

    def _narrow(self, x: Floats, codes: Halves) -> bool:
        return _narrow(x, codes)

    def _widen(self, codes: Halves, out: Floats) -> None:
        _widen(codes, out)

    def _widen_add(self, codes: Halves, out: Floats, weight: np.float32) -> None:
        _widen_add(codes, out, weight)


@kernel
def _narrow(x: Floats, codes: Halves) -> bool:
    """Round to bfloat16; whether all is finite."""
    bits = x.view(np.uint32)
    top = np.uint32(0)
    for i in range(bits.size):
        magnitude = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        top = max(top, magnitude)
        kept = min(magnitude, np.uint32(0x7F7F0000))
        odd = np.uint32((kept >> np.uint32(16)) & np.uint32(1))
        rounded = np.uint32(np.uint32(kept + np.uint32(0x7FFF) + odd) >> np.uint32(16))
        codes[i] = np.uint16(rounded | (np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000)))
    return bool(top < np.uint32(0x7F800000))


@kernel
def _widen(codes: Halves, out: Floats) -> None:
    bits = out.view(np.uint32)
    for i in range(codes.size):
        bits[i] = np.uint32(codes[i]) << np.uint32(16)


@kernel
def _widen_add(codes: Halves, out: Floats, weight: np.float32) -> None:
    values = np.empty(_BLOCK, np.float32)
    bits = values.view(np.uint32)
    for start in range(0, out.size, _BLOCK):
        part, target = codes[start : start + _BLOCK], out[start : start + _BLOCK]
        for i in range(part.size):
            bits[i] = np.uint32(part[i]) << np.uint32(16)
        for i in range(target.size):
            target[i] += weight * values[i]
