"""bfloat16: the upper half of a float32, 16 bits per coordinate, rounded to nearest even.

The codec keeps 8 significant bits and float32's range. Values that would round to infinity become the largest finite value,
0x7F7F.

    body   one uint16 per coordinate; infinity and NaN do not occur
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.half_precision import HalfPrecision
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.halves import Bf16Rows


@dataclass(frozen=True, repr=False)
class Bf16(HalfPrecision):
    """bf16: no parameters.

    Decoded values have eight significant bits:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("bf16"), np.array([3.14159, 1e38], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [3.140625, 9.969209968386869e+37]
    """

    id = "bf16"
    limit = 0x7F80

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: Bf16Rows."""
        return Bf16Rows(self)
