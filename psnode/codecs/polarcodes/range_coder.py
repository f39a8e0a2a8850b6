"""32 parallel binary range coders, one per lane, whose 16-bit words make one stream.

Let l be the LLR of the prior of a lane's bit u. The coder codes e, which is 1 if u is the less likely value. The probability
q(|l|) of e = 1, in units of 2^-14, comes from a table. In an interval of range r, e = 1 takes the upper part, of range floor(r
/ 2^14) q, and e = 0 takes the rest.

A lane whose range falls below 2^16 takes 16 bits. The reader then takes the next word of the stream. The writer reserves the
next position in the stream for a word of this lane. It knows this word only when the lane has reserved two more positions. Both
sides therefore use the words in the same order. Before the first bit, every lane takes two words.

Source: Martin, "Range encoding: an algorithm for removing redundancy from a digitised message", 1979.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnode.codecs.arrays import Words16
from psnode.codecs.kernels.llvm.instructions import instructions
from psnode.codecs.kernels.llvm.lookups import pick
from psnode.codecs.kernels.llvm.operations import absolute, minimum, packed, select, unpacked
from psnode.codecs.polarcodes.lanes import Llrs, Masks
from psnode.codecs.polarcodes.vectors import load_row, store_row

PRECISION = 14
STEPS = 64  # entries of the table of q: |l| in steps of 16 units


@instructions
def likely_of(llrs: Llrs, row: int, table: Words16, chances: Masks) -> np.uint32:
    """Return the likelier bits of the row, and write the probabilities q of the other bits to `chances`. `table`: 64 uint16."""
    values = load_row(llrs, row)
    limited = minimum(absolute(values).view(np.uint16) >> 4, STEPS - 1)
    store_row(chances, 0, pick(table, limited, STEPS).astype(np.uint32))
    return packed(values < 0)  # type: ignore[no-any-return]


def split(state: Any, chances: Any, used: Any) -> tuple[Any, Any, Any]:
    """Return row 0 of a state, and the two parts, upper and lower, of the ranges in row 1.

    The upper part is empty in lanes that are not `used`.
    """
    value, ranges, q = load_row(state, 0), load_row(state, 1), load_row(chances, 0)
    upper = select(unpacked(used), (ranges >> PRECISION) * q, 0)
    return value, upper, ranges - upper


def narrow(ranges: Any) -> Any:
    """Return the mask of the lanes whose range is below 2^16. These lanes write or read the next 16-bit word."""
    return ranges < (1 << 16)


def widened(empty: Any, values: Any) -> Any:
    """Return the values, which are multiplied by 2^16 in the lanes `empty`."""
    return select(empty, values << 16, values)
