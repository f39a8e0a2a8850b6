"""The CUDA kernels for buckets of rows.

The codes of a bucket have as many bits as its largest code needs: see rows/cuda/fitted.h.

`measure` computes the numbers of each bucket. It also computes the codes, only to find their width. `place_buckets` computes
the offset of each bucket. When widths and offsets are known, `encode`, which computes the codes again, and `decode` process
single rows, as for other packings.
"""

from __future__ import annotations

from collections.abc import Sequence

from psnode.codecs.rows.cuda.row_statements import PLAIN, CudaRows, rooms_of
from psnode.codecs.rows.formula import Column, Program
from psnode.codecs.rows.statements import Store, place_of
from psnode.codecs.rows.values import Dtype, Span, Value, below

_MEASURE = [
    "// The numbers and the widths of `count` / BUCKET_ROWS buckets. `done`: the first row of one that is not finite.",
    "KERNEL measure(const float *x, uint32 *side, const int *tops, uint32 *done, const uint64 *drawn,",
    "               uint32 first, uint32 rows, uint32 count) {",
    "    uint32 key[5];",
    "    key_of(drawn, key);",
]
_BUCKET = [
    "    ROWS(unit, count / BUCKET_ROWS) {",
    "        uint32 row = first + BUCKET_ROWS * unit;",
    "        if (unit == 0) for (uint32 end = BUCKETS(rows); end % 4; end++) STORE_BYTE(WIDTHS(side, rows) + end, 0);",
    "        if (!finite_rows(x, BUCKET_ROWS * unit, BUCKET_ROWS)) {",
    "            LOWER(done, BUCKET_ROWS * unit);",
    "            STORE_BYTE(WIDTHS(side, rows) + row / BUCKET_ROWS, 0);",
    "            continue;",
    "        }",
]
_ROW = [
    "        U32 some = SPREAD_U32(0);",
    "        ROLLED for (uint32 end = row + BUCKET_ROWS; row < end; row++) {",
    "            F32 v[16];",
    "            EACH(k) v[k] = LOAD_F32(x, 512 * (uint64)(row - first) + 32 * k);",
]
WIDTH = "const uint32 bits = WIDTHS(side, rows)[row / BUCKET_ROWS];"
STARTS = "const uint32 *starts"
HERE = "packed + starts[at / BUCKET_ROWS] + 64 * bits * (at % BUCKET_ROWS)"


def header(program: Program) -> list[str]:
    """Return the lines of text that precede the kernels."""
    defined = {"BUCKET_ROWS": program.packed.bucket, "NUMBERS": len(program.of_array), "COLUMNS": len(program.of_buckets)}
    return [*(f"#define {name} {number}u" for name, number in defined.items()), '#include "fitted.h"', ""]


def measure(program: Program) -> list[str]:
    """Return the lines of the source of the kernel `measure`."""
    rows, columns = CudaRows(program), (*program.of_array, *program.of_buckets)
    ends = [*(column.value for column in columns), program.packed.value]
    rows.numbers(ends)
    before = rows.taken()
    with rows.block():
        rows.numbers(ends, Span.BUCKET)
        for column in columns:
            rows.put(f"STORE_WORD(side, {place_of(program, column)}, {word(column, rows)});")
        numbers = rows.taken()
        with rows.block():
            rows.put("U32 codes[16];")
            rows.into(program.packed.value, Store("codes[{at}] = {x};"))
            rows.put("some = with_ones(some, codes);")
    body = rows.taken()
    rooms = ["    " + line for line in rooms_of(rows)]
    end = ["        }", "        STORE_BYTE(WIDTHS(side, rows) + (row / BUCKET_ROWS - 1), width_of(some));", "    }", "}"]
    return [*_MEASURE, *before, *_BUCKET, *numbers, *_ROW, *rooms, *body, *end]


def read(program: Program, rows: CudaRows, span: Span, ends: Sequence[Value]) -> None:
    """Append the definitions of the fields of span `span` that are in the body and on which `ends` depend."""
    columns = {column.name: column for column in program.numbers}
    for value in below(ends):
        if value.op == "field" and value.span is span:
            place = f"side[{place_of(program, columns[str(value.detail)])}]"
            rows.define(value, f"float_of({place})" if value.kind is Dtype.F32 else f"({PLAIN[value.kind]}){place}")


def word(column: Column, rows: CudaRows) -> str:
    """Return the expression for the value of a column as a 32-bit word."""
    found = rows.number(column.value)
    return f"bits_of({found})" if column.value.kind is Dtype.F32 else f"(uint32)({found})"
