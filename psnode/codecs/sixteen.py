"""Base of fp16 and bf16: a body of uint16 codes, and their bytes, high ones first, as symbols."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Shape, Sink, Source, Words, readonly
from psnode.codecs.kernels.finite import raise_nonfinite
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.errors import PayloadError

Halves = npt.NDArray[np.uint16]


@kernel
def _highest(codes: Halves) -> int:
    """The highest code but for its sign."""
    top = np.uint16(0)
    for i in range(codes.size):
        top = max(top, np.uint16(codes[i] & np.uint16(0x7FFF)))
    return int(top)


class SixteenBits(Quantiser):
    """A cast to a 16-bit floating-point format: biased, as it rounds to nearest, by at most half a unit in the last place."""

    limit: ClassVar[int]  # codes without their sign from here on are infinity and NaN

    @abstractmethod
    def _narrow(self, x: Floats, codes: Halves) -> bool:
        """Round and saturate 1-D `x`; whether all of it is finite."""

    @abstractmethod
    def _widen(self, codes: Halves, out: Floats) -> None:
        """Overwrite `out` (1-D)."""

    @abstractmethod
    def _widen_add(self, codes: Halves, out: Floats, weight: np.float32) -> None:
        """Add weight * widened to `out` (1-D)."""

    def _max_body(self, shape: Shape) -> int:
        return 2 * math.prod(shape)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        x = source.array()
        if not self._narrow(x.reshape(-1), body[: 2 * x.size].view(np.uint16)):
            raise_nonfinite(x)
        return 2 * x.size

    def _decode(self, body: Bytes, out: Floats) -> None:
        self._widen(self.codes(body, out.size), out.reshape(-1))

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        self._widen_add(self.codes(body, out.size), out.reshape(-1), weight)

    def codes(self, body: Bytes, size: int) -> Halves:
        """The codes of a body of `size` values. PayloadError if one is not finite."""
        if body.size != 2 * size:
            raise PayloadError(f"{self.id}: a body of {body.size} bytes cannot hold {size} values")
        codes = body.view(np.uint16)
        if _highest(codes) >= self.limit:
            raise PayloadError(f"{self.id}: a value is not finite")
        return codes

    def _max_symbols(self, size: int) -> tuple[int, int, int]:
        return 0, 2 * size, 256

    def _symbols(self, x: Floats, key: Words) -> Symbols:
        body = np.empty(2 * x.size, np.uint8)
        self._encode(Values(x), key, body, NOTHING)
        return Symbols(body[:0], np.concatenate([body[1::2], body[::2]]), 256)

    def _read_side(self, side: Bytes, size: int) -> tuple[int, int]:
        if side.size:
            raise PayloadError(f"{self.id}: {side.size} bytes of side information where none belong")
        return 2 * size, 256

    def _from_symbols(self, side: Bytes, codes: Codes, out: Floats) -> None:
        body = np.empty(2 * out.size, np.uint8)
        body[1::2], body[::2] = codes[: out.size], codes[out.size :]
        self._decode(readonly(body), out)
