"""Generation of CUDA kernels from a program: `encode`, `decode` and, where needed, `measure`, `sum_rows` and `norms`.

The kernels `survey` and `fold_sums` are in psnode/codecs/rows/cuda/rows.h. A warp processes one row at a time and exchanges
nothing with other warps. The same text is also valid C++ for a CPU, on which a warp is a vector of 32 lanes. It is compiled by
g++ -std=c++17 -ffp-contract=off -fwrapv. On a GPU, it needs --fmad=false. Division and square root follow IEEE 754 by default.
"""

from __future__ import annotations

from pathlib import Path

from psnode.codecs.rows.cuda.fitted_buckets import HERE, STARTS, WIDTH, header, measure, read, word
from psnode.codecs.rows.cuda.input_sums import sum_rows
from psnode.codecs.rows.cuda.row_statements import PLAIN, CudaRows, rooms_of
from psnode.codecs.rows.formula import Program
from psnode.codecs.rows.statements import Store, place_of
from psnode.codecs.rows.values import Dtype, Span, Value, below

HEADERS = Path(__file__).parent

_HEADER = '// {}: kernels made of its formula by psnode.codecs.rows\n#include "rows.h"\n'
_ENCODE = [
    "// Code `count` full rows, of which x begins at number `first` of `rows`. `done`: the first of them that is not finite,",
    "// or that is packed with one. Kernels with sums find that beforehand.",
    "KERNEL encode(const float *x, float *error, uint32 *side, byte *packed, const int *tops, uint32 *done,",
    "              const uint64 *drawn, uint32 first, uint32 rows, uint32 count) {",
    "    uint32 key[5];",
    "    key_of(drawn, key);",
]
_MEASURE = [
    "// As encode, of all rows; in the place of an error the products of rows with what they decode to: see put_products.",
    "KERNEL measure(const float *x, double *dots, uint32 *side, byte *packed, const int *tops, uint32 *done,",
    "               const uint64 *drawn, uint32 rows, uint32 count, uint32 size) {",
    "    const uint32 first = 0;",
    *_ENCODE[4:],
]
_DECODE = [
    "// out = decoded, or out += weight * decoded, for `count` full rows.",
    "KERNEL decode(const uint32 *side, const byte *packed, float *out, float weight, int adding,",
    "              uint32 first, uint32 rows, uint32 count) {",
]
_ROW = ["        const uint32 row = first + at;", "        const uint64 start = 512 * (uint64)at;"]
_LOAD = ["        F32 v[16];", "        EACH(k) v[k] = LOAD_F32(x, start + 32 * k);"]
_LEFT = Store("STORE_F32(error, start + 32 * {at}, v[{at}] - {x});")
_BLOCK = [
    "    ROWS(unit, count / 40) {",
    "        uint32 sent = 0;",
    "        ROLLED for (uint32 part = 0; part < 40; part++) {",
    "        const uint32 at = 40 * unit + part;",
]
_UNIT = [
    "    ROWS(unit, count / 5) {",
    "        U32 trits[16];",
    "        for (uint32 part = 0, power = 1; part < 5; part++, power *= 3) {",
    "        const uint32 at = 5 * unit + part;",
]


def text_of(program: Program) -> str:
    """Return the source of the kernels. It depends only on the program."""
    sums = [*sum_rows(program), ""] if program.sums else []
    more = ['#include "sparse.h"', ""] if program.packed.form == "sparse" else []
    if program.packed.form == "fitted":
        more = [*header(program), *measure(program), ""]
    return "\n".join([_HEADER.format(program.id), *more, *sums, *_encode(program), "", *_decode(program), ""])


def measuring_text_of(program: Program) -> str:
    """Return the source of the kernel `measure`, which codes the contractive form. Packings in blocks are not supported."""
    assert not program.packed.in_blocks, program.id
    return "\n".join([_HEADER.format(program.id), *_encode(program, measuring=True), ""])


def _encode(program: Program, measuring: bool = False) -> list[str]:
    if program.packed.form == "fitted":
        return _encode_fitted(program)
    rows, columns = CudaRows(program), program.numbers
    rows.numbers([*(column.value for column in columns), program.packed.value, program.kept])
    rows.put(*_width(program.packed.width, rows))
    before = rows.taken()
    if program.sums:
        before.insert(0, "    if (*done < count) return;")
    with rows.block():
        if program.packed.rows == 1 and not program.sums:
            rows.put("if (top_bits(v) >= FINITE_BELOW) {", "    LOWER(done, at);", "    continue;", "}")
        for column in columns:
            rows.put(f"STORE_WORD(side, {place_of(program, column)}, {word(column, rows)});")
        rows.put(f"{_codes(program)} codes[16];")
        rows.into(program.packed.value, Store("codes[{at}] = {x};"))
        rows.put(_pack(program))
        if program.packed.in_blocks:
            rows.put("STORE_WORD(starts, unit, sent);")
        if measuring:
            with rows.when("row < rows"):
                rows.put("F32 shown[16];")
                rows.into(program.kept, Store("shown[{at}] = {x};"))
                rows.put("put_products(v, shown, size - start < 512 ? (uint32)(size - start) : 512, dots, row, rows);")
        else:
            with rows.when("error"):
                rows.into(program.kept, _LEFT)
    body = rows.taken()
    if program.packed.rows == 1:
        head = _MEASURE if measuring else _ENCODE
        return [*head, *before, "    ROWS(at, count) {", *_ROW, *_LOAD, *rooms_of(rows), *body, "    }", "}"]
    unit, count = (_BLOCK, 40) if program.packed.in_blocks else (_UNIT, 5)
    missed = [f"        if (!finite_rows(x, {count} * unit, {count})) {{", f"            LOWER(done, {count} * unit);"]
    look = [] if program.sweeps or program.sums else [*missed, "            continue;", "        }"]
    store = [] if program.packed.in_blocks else ["        EACH(k) STORE_8(packed + 512 * (uint64)unit, 32 * k, trits[k]);"]
    opening = [*unit[:2], *look, *unit[2:]]
    plain = _MEASURE if measuring else _ENCODE
    head = _with_starts(plain, "uint32 *starts") if program.packed.in_blocks else plain
    return [*head, *before, *opening, *_ROW, *_LOAD, *rooms_of(rows), *body, "        }", *store, "    }", "}"]


def _encode_fitted(program: Program) -> list[str]:
    """Return the lines of the kernel that packs rows whose numbers and widths are already in the body."""
    rows, (codes, kept) = CudaRows(program), program.with_fields
    rows.numbers([codes, kept])
    before = rows.taken()
    with rows.block():
        rows.put("if (at >= *done) continue;")
        read(program, rows, Span.BUCKET, [codes, kept])
        rows.draw([codes])
        rows.put("U32 codes[16];", WIDTH)
        rows.into(codes, Store("codes[{at}] = {x};"))
        rows.put(_pack(program))
        with rows.when("error"):
            rows.into(kept, _LEFT)
    body = rows.taken()
    head = _with_starts(_ENCODE, STARTS)
    return [*head, *before, "    ROWS(at, count) {", *_ROW, *_LOAD, *rooms_of(rows), *body, "    }", "}"]


def _decode(program: Program) -> list[str]:
    rows = CudaRows(program)
    if program.packed.form == "sparse":
        return _decode_blocks(program, rows)
    ends = [program.decoded] if program.width is None else [program.width, program.decoded]
    read(program, rows, Span.ARRAY, ends)
    rows.numbers([program.decoded])
    rows.put(*_width(program.width, rows))
    before = rows.taken()
    if program.place_of_key is not None:
        before += ["    uint32 key[5];", f"    key_of_words(side + {program.place_of_key}, key);"]
    with rows.block():
        read(program, rows, Span.BUCKET, ends)
        read(program, rows, Span.ROW, ends)
        rows.put(WIDTH if program.packed.form == "fitted" else "")
        rows.put(f"{_codes(program)} codes[16];", _unpack(program))
        place = "out, start + 32 * {at}"
        rows.put("if (adding) {")
        with rows.block():
            rows.into(program.decoded, Store(f"STORE_F32({place}, LOAD_F32({place}) + weight * {{x}});"))
        rows.put("} else {")
        with rows.block():
            rows.into(program.decoded, Store(f"STORE_F32({place}, {{x}});"))
        rows.put("}")
    body = rows.taken()
    if program.packed.form in ("planes", "halves", "signs", "fitted"):
        head = _with_starts(_DECODE, STARTS) if program.packed.form == "fitted" else _DECODE
        return [*head, *before, "    ROWS(at, count) {", *_ROW, *rooms_of(rows), *body, "    }", "}"]
    load = "        EACH(k) trits[k] = digits_of(LOAD_8(packed + 512 * (uint64)unit, 32 * k));"
    return [*_DECODE, *before, *_UNIT[:2], load, *_UNIT[2:], *_ROW, *rooms_of(rows), *body, "        }", "    }", "}"]


def _with_starts(lines: list[str], starts: str) -> list[str]:
    """Return the opening lines of a kernel with `starts`, the offsets of blocks, as an additional parameter."""
    end = next(at for at, line in enumerate(lines) if line.endswith(") {"))
    return [*lines[:end], lines[end].replace(") {", f", {starts}) {{"), *lines[end + 1 :]]


def _decode_blocks(program: Program, rows: CudaRows) -> list[str]:
    """Return the lines of the kernel that decodes packings in blocks.

    In a dense block all coordinates are decoded. In a sparse block, only the listed coordinates are decoded. If values are
    written instead of added to `out`, all coordinates of a sparse block are first written as code 1.
    """
    for at, column in enumerate(program.of_array):
        value = next((value for value in below([program.decoded]) if value.op == "field" and value.detail == column.name), None)
        if value is not None:
            word = f"side[{at}]"
            rows.define(value, f"float_of({word})" if value.kind is Dtype.F32 else f"({PLAIN[value.kind]}){word}")
    rows.numbers([program.decoded])
    before = rows.taken()

    def stored(opening: list[str], new: str, old: str) -> None:
        with rows.block():
            rows.put(*opening, "if (adding) {")
            with rows.block():
                rows.into(program.decoded, Store(new.format(x=f"{old} + weight * {{x}}")))
            rows.put("} else {")
            with rows.block():
                rows.into(program.decoded, Store(new.format(x="{x}")))
            rows.put("}")

    rows.put("    const byte *from = packed + starts[unit];", "    const uint32 sent = LOAD_HALF(from);")
    rows.put("    if (sent == DENSE || !adding) ROLLED for (uint32 part = 0; part < BLOCK_ROWS; part++) {")
    with rows.block():
        one = "if (sent == DENSE) digits_of_row(codes, part, from + 2);"
        opening = ["const uint64 start = 512 * (uint64)(BLOCK_ROWS * unit + part);", "U32 codes[16];"]
        opening += ["EACH(k) codes[k] = SPREAD_U32(1);", one]
        stored(opening, "STORE_F32(out, start + 32 * {{at}}, {x});", "LOAD_F32(out, start + 32 * {at})")
    rows.put("    }", "    if (sent != DENSE) TOGETHER;")
    rows.put("    if (sent != DENSE) ROLLED for (uint32 first = 0; first < sent; first += 512) {")
    with rows.block():
        opening = ["float *to = out + 512 * BLOCK_ROWS * (uint64)unit;", "U32 codes[16], places[16];", "MASK listed[16];"]
        opening += ["list_entries(codes, places, listed, from + 2, first, sent);"]
        there = "listed[{at}], to, places[{at}]"
        stored(opening, f"SCATTER_F32({there.replace('{', '{{').replace('}', '}}')}, {{x}});", f"GATHER_F32({there})")
    rows.put("    }")
    body = rows.taken()
    head = _with_starts(_DECODE, "const uint32 *starts")
    return [*head, *before, "    ROWS(unit, count / BLOCK_ROWS) {", *rooms_of(rows), *body, "    }", "}"]


def _codes(program: Program) -> str:
    return "MASK" if program.packed.form == "signs" else "U32"


def _width(width: Value | None, rows: CudaRows) -> list[str]:
    """Return the line that defines the width of the codes, or no line if the width is fixed."""
    return [] if width is None else [f"const uint32 bits = {rows.number(width)};"]


def _pack(program: Program) -> str:
    form, bits = program.packed.form, "bits" if program.packed.width is not None else program.packed.bits
    if form == "halves":
        return "EACH(k) STORE_16(packed + 2 * start, 32 * k, codes[k]);"
    if form == "trits":
        return "EACH(k) trits[k] = part ? trits[k] + codes[k] * power : codes[k];"
    if form == "sparse":
        return "append_row(codes, part, packed + ROOM_BYTES * (uint64)unit, sent);"
    if form == "signs":
        return "EACH(k) STORE_WORD(packed + start / 8, k, BALLOT(codes[k]));"
    if form == "fitted":
        return f"pack_planes(codes, bits, {HERE});"
    return f"pack_planes(codes, {bits}, packed + {bits} * (start / 8));"


def _unpack(program: Program) -> str:
    form, bits = program.packed.form, "bits" if program.width is not None else program.packed.bits
    if form == "halves":
        return "EACH(k) codes[k] = LOAD_16(packed + 2 * start, 32 * k);"
    if form == "trits":
        return "EACH(k) { codes[k] = trits[k] % 3; trits[k] = trits[k] / 3; }"
    if form == "signs":
        return "EACH(k) codes[k] = BITS_OF_WORD(LOAD_WORD(packed + start / 8, k));"
    if form == "fitted":
        return f"unpack_planes(codes, bits, {HERE});"
    return f"unpack_planes(codes, {bits}, packed + {bits} * (start / 8));"
