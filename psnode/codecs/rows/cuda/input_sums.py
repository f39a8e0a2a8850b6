"""The CUDA kernels for a program's sums over the whole input.

The kernel `sum_rows` computes each row's part of each sum. The kernel `norms` replaces the parts of an L2 norm by others whose
sum is the norm. The kernel `fold_sums` (rows.h) adds the parts.
"""

from __future__ import annotations

from psnode.codecs.rows.cuda.row_statements import CudaRows, rooms_of
from psnode.codecs.rows.formula import NORM, Program
from psnode.codecs.rows.values import Dtype, Span, Value

_OPENING = [
    "// The parts that `count` rows of x, of `size` coordinates, have in each sum. `done`: the first row that is not finite.",
    "KERNEL sum_rows(const float *x, double *sums, const int *tops, uint32 *done, const uint64 *drawn,",
    "                uint32 size, uint32 count) {",
    "    uint32 key[5];",
    "    key_of(drawn, key);",
]
_ROW = [
    "    ROWS(row, count) {",
    "        const uint64 start = 512 * (uint64)row;",
    "        const uint32 here = size - start < 512 ? (uint32)(size - start) : 512;",
    "        F32 v[16];",
    "        EACH(k) v[k] = LOAD_F32(x, start + 32 * k);",
]


def sum_rows(program: Program) -> list[str]:
    """Return the lines of the source of the kernel `sum_rows`."""
    rows = CudaRows(program)
    rows.numbers([value.args[0] for value in program.sums])
    before = rows.taken()
    with rows.block():
        rows.put("if (top_bits(v) >= FINITE_BELOW) {", "    LOWER(done, row);", "    continue;", "}")
        for place, value in enumerate(program.sums):
            part = "square_sum(v)" if value.op == NORM else _of_row(value.args[0], rows)
            rows.put(f"STORE_F64(sums, {place} * (uint64)count + row, {part});")
    body = rows.taken()
    return [*_OPENING, *before, *_ROW, *rooms_of(rows), *body, "    }", "}", *_norms(program)]


def _norms(program: Program) -> list[str]:
    """Return the lines of the kernel that computes norms of the whole input from the parts of the rows."""
    places = [place for place, value in enumerate(program.sums) if value.op == NORM]
    if not places:
        return []
    calls = [f"        norm_of_all(x, sums + {place} * (uint64)count, count);" for place in places]
    return ["", "KERNEL norms(const float *x, double *sums, uint32 count) {", "    ROWS(at, 1) {", *calls, "    }", "}"]


def _of_row(x: Value, rows: CudaRows) -> str:
    if x.span is Span.ROW:
        return rows.number(x)
    room = "v" if x.op == "input" else rows.room(x)
    return f"{'count_512' if x.kind is Dtype.BOOL else 'row_sum'}({room}, here)"
