"""Selections. A formula ranks the coordinates, and those with the greatest ranks are sent as indices and values.

    def rank(self, v: Value) -> Value:          # u32 for each coordinate of a row; greater ranks are sent first, rank 0 never
        return bits(v) & 0x7FFFFFFF

The CUDA kernel `mark` is generated from this formula. The codec (psnode.codecs.selection) determines the least rank that is
sent, and codes the indices and values. On a CPU, hand-written kernels make the selection.
"""

from __future__ import annotations

from typing import Protocol

from psnode.codecs.rows.cuda.row_statements import CudaRows, rooms_of
from psnode.codecs.rows.formula import OF_INPUT, Program
from psnode.codecs.rows.packings import Packed
from psnode.codecs.rows.statements import Store
from psnode.codecs.rows.values import Dtype, Span, Value, below
from psnode.errors import CodecSpecError

_RANDOM = ("random16", "coin", "settle")
_OPENING = """\
// {}: the selection that its formula makes, by psnode.codecs.rows
#include "rows.h"
#include "select.h"

// List the coordinates of `blocks` blocks of x, `rows` rows in all, whose ranks reach `limit` >= 1, and count them by block.
KERNEL mark(const float *x, uint32 *counts, byte *rooms, uint32 limit, uint32 rows, uint32 blocks) {{
    ROWS(block, blocks) {{
        uint32 found = 0;
        ROLLED for (uint32 part = 0; part < SELECT_ROWS && SELECT_ROWS * block + part < rows; part++) {{
            const uint64 start = 512 * (SELECT_ROWS * (uint64)block + part);
            F32 v[16];
            EACH(k) v[k] = LOAD_F32(x, start + 32 * k);
            U32 ranks[16];"""
_CLOSING = """\
            list_ranks(ranks, limit, part, rooms + SELECT_BYTES * (uint64)block, found);
        }
        STORE_WORD(counts, block, found);
    }
}
"""


class Ranking(Protocol):
    """A formula for the rank of coordinates, which determines the order in which they are sent."""

    @property
    def id(self) -> str: ...

    def rank(self, v: Value) -> Value:
        """Return the rank (u32) of each coordinate of a row `v` of float32."""


def text_of(ranking: Ranking) -> str:
    """Return the source of the CUDA kernels. It depends only on the formula.

    Raise CodecSpecError if the formula gives no rank.
    """
    v = Value("input", Dtype.F32, span=Span.COORDINATE)
    rank = ranking.rank(v)
    if not isinstance(rank, Value) or rank.kind is not Dtype.U32 or rank.span is not Span.COORDINATE:
        raise CodecSpecError(f"{ranking.id}: a rank is a u32 of every coordinate, not {rank!r}")
    if any(value.op in (*OF_INPUT, *_RANDOM) for value in below([rank])):
        raise CodecSpecError(f"{ranking.id}: a rank knows its row alone, neither the whole input nor random bits")
    rows = CudaRows(Program(ranking.id, 0, (), (), Packed(rank, "ranks", 32), v, v))
    with rows.block(), rows.block():
        rows.into(rank, Store("ranks[{at}] = {x};"))
    body = rows.taken()
    return "\n".join([_OPENING.format(ranking.id), *rooms_of(rows), *body, _CLOSING])
