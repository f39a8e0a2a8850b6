"""32 binary range coders side by side, one a lane, whose 16-bit words make one stream.

A lane's bit u has the LLR l of its prior. The coder is told e = (u is the less likely value), which has probability q(|l|) of
2^-14, from a table. With range r: r1 = floor(r / 2^14) q; e = 1 takes the upper r1 of the interval, e = 0 the rest. A lane whose
range falls below 2^16 takes 16 bits: reading, the next word of the stream; writing, a place in the stream for the word that is
known two such steps later. So both sides see the words in the same order. Before the first bit every lane takes two words.

Source: Martin, "Range encoding: an algorithm for removing redundancy from a digitised message", 1979.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba import types
from numba.extending import intrinsic

from psnode.codecs.arrays import Words16
from psnode.codecs.polarcodes.lanes import Llrs, Masks
from psnode.codecs.polarcodes.vectors import I1, I16, ROW, WIDE, as_mask, as_word, at, call, load, pick, row_at, splat

PRECISION = 14
STEPS = 64  # entries of the table of q, |l| in steps of 16 units


def _likely(typing: Any, llrs: Any, row: Any, table: Any, chances: Any) -> Any:
    """The likelier bits of the row; chances[lane] = q of the other ones, from `table`, 64 uint16."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        llrs, row, table, chances = arguments
        values = load(builder, row_at(context, builder, signature.args[0], llrs, row, ROW))
        sizes = builder.lshr(call(builder, "abs", values, ir.Constant(I1, 0)), splat(ROW, 4))
        limited = call(builder, "umin", sizes, splat(ROW, STEPS - 1))
        entries = at(context, builder, signature.args[2], table, ir.Constant(row.type, 0), I16)
        target = row_at(context, builder, signature.args[3], chances, 0, WIDE)
        builder.store(builder.zext(pick(context, builder, entries, limited, STEPS), WIDE), target).align = 4
        return as_word(builder, builder.icmp_signed("<", values, splat(ROW, 0)))

    return types.uint32(llrs, types.intp, table, chances), generate


def split(context: Any, builder: Any, signature: Any, state: Any, chances: Any, used: Any) -> tuple[Any, Any, Any]:
    """Row 0 of a state, and the two parts of the ranges in row 1: the upper one is empty in lanes not `used`."""
    value, ranges = (load(builder, row_at(context, builder, signature.args[0], state, row, WIDE), 4) for row in (0, 1))
    q = load(builder, row_at(context, builder, signature.args[1], chances, 0, WIDE), 4)
    upper = builder.mul(builder.lshr(ranges, splat(WIDE, PRECISION)), q)
    upper = builder.select(as_mask(builder, used), upper, splat(WIDE, 0))
    return value, upper, builder.sub(ranges, upper)


def narrow(builder: Any, ranges: Any) -> Any:
    """Mask of the lanes that take a word."""
    return builder.icmp_unsigned("<", ranges, splat(WIDE, 1 << 16))


def widened(builder: Any, empty: Any, values: Any) -> Any:
    """The values, times 2^16 in the lanes `empty`."""
    return builder.select(empty, builder.shl(values, splat(WIDE, 16)), values)


likely_of = cast(Callable[[Llrs, int, Words16, Masks], np.uint32], intrinsic(_likely))
