"""IEEE half precision: 16 bits per coordinate, rounded to nearest even; values beyond +-65504 become +-65504.

Magnitudes of at least 2^-14 keep 11 significant bits. Smaller magnitudes are rounded to multiples of 2^-24, and those up to
2^-25 to 0.

    body   one uint16 per coordinate; infinity and NaN do not occur
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.half_precision import HalfPrecision
from psnode.codecs.rows.formula import Formula
from psnode.codecs.rows.known.halves import Fp16Rows


@dataclass(frozen=True, repr=False)
class Fp16(HalfPrecision):
    """fp16: no parameters.

    Decoded values have eleven significant bits within the format's range:

    >>> import numpy as np
    >>> from psnode.codecs import get_codec
    >>> codec, x = get_codec("fp16"), np.array([3.14159, 1e6, 2**-26], np.float32)
    >>> codec.decode(codec.encode(x, np.random.default_rng(1))).tolist()
    [3.140625, 65504.0, 0.0]
    """

    id = "fp16"
    limit = 0x7C00

    def formula(self) -> Formula:
        """Return the formula from which the codec's kernels are generated: Fp16Rows."""
        return Fp16Rows(self)
