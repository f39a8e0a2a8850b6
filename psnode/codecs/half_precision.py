"""Base class of fp16 and bf16. The body is one uint16 code per value.

The symbols for a lossless stage are the high bytes of all codes, then their low bytes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import numpy.typing as npt

from psnode.codecs.base import NOTHING, Bytes, Codes, Floats, Words, readonly
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.rows.codec import Generated, coder_of
from psnode.codecs.rows.coder import Coder
from psnode.codecs.sources import Values
from psnode.codecs.stages import Quantiser, Symbols
from psnode.errors import PayloadError

Halves = npt.NDArray[np.uint16]


@kernel
def _highest(codes: Halves) -> int:
    """Return the largest of the codes, compared without their sign bits."""
    top = np.uint16(0)
    for i in range(codes.size):
        top = max(top, np.uint16(codes[i] & np.uint16(0x7FFF)))
    return int(top)


class HalfPrecision(Generated, Quantiser):
    """A cast to a 16-bit floating-point format. It is biased, because it rounds to nearest."""

    limit: ClassVar[int]  # a code is infinity or NaN if, without its sign bit, it is at least this

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError if a code is infinity or NaN."""
        if _highest(body[: body.size // 2 * 2].view(np.uint16)) >= self.limit:
            raise PayloadError(f"{self.id}: a value is not finite")

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        coder = coder_of(self)
        coder.check(body, size)
        self.check_fields(body)
        return coder, body

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
