"""The Numba kernel that encodes buckets of rows. The codes of a bucket have as many bits as its largest code needs."""

from __future__ import annotations

from typing import Protocol

from psnode.codecs.rows.formula import Column, Program
from psnode.codecs.rows.numba.row_statements import NumbaRows
from psnode.codecs.rows.statements import Store
from psnode.codecs.rows.values import Span, below


class EncodingKernel(Protocol):
    """The members of a generated kernel that encode_body uses."""

    program: Program
    rows: NumbaRows
    coded: Store

    @property
    def digits(self) -> int:
        """Return the number of coordinates of a bucket."""

    def place(self, column: Column) -> str:
        """Return the expression that accesses the number of a column for the row `row`."""

    def left(self, start: str) -> None:
        """Append the statements that serve the sinks after the row that begins at `start` has been coded."""


def widths_of(program: Program) -> list[str]:
    """Return the line that defines a view of the widths of all buckets, which precede the codes."""
    if program.packed.form != "fitted":
        return []
    columns = len(program.of_buckets)
    buckets = f"(rows + {program.packed.bucket - 1}) // {program.packed.bucket}"
    numbers = f"{len(program.of_array)} + {columns} * ({buckets})" if columns else f"{len(program.of_array)}"
    return [f"    buckets, widths = {buckets}, viewed(side, np.uint8)[4 * ({numbers}) :]"]


def encode_body(kernel: EncodingKernel) -> list[str]:
    """Return the statements that encode a bucket. The codes of all its rows are kept until their width is known."""
    program, rows = kernel.program, kernel.rows
    ends = program.ends
    with rows.block():
        found = [value for value in below(ends) if value.op == "l2_norm_of_bucket"]
        rows.put("norm = l2_norm(whole, lanes)" if found else "norm = np.float64(0 if is_finite(whole) else -1)")
        rows.put("if norm < 0:", "    return start")
        rows.numbers(ends, Span.BUCKET)
        for column in program.of_buckets:
            rows.put(f"{kernel.place(column)} = {rows.number(column.value)}")
        rows.put(f"for begin in range(start, start + {kernel.digits}, 512):")
        with rows.block():
            rows.put("row = first + begin // 512", "v = source[begin : begin + 512]")
            rows.put("if error.size:", "    fetch_row_to_write(error, begin + AHEAD)")
            rows.put("part = digits[begin - start : begin - start + 512]")
            rows.draw(ends)
            rows.into(program.packed.value, kernel.coded)
            kernel.left("begin")
        rows.put("top = np.uint32(0)", f"for i in range({kernel.digits}):", "    top = np.uint32(top | np.uint32(digits[i]))")
        rows.put("bits = np.int64(0)", "while top >> np.uint32(bits):", "    bits += 1")
        rows.put(f"widths[(first + start // 512) // {program.packed.bucket}] = np.uint8(bits)")
        rows.put(f"for begin in range(0, {kernel.digits}, 512):")
        with rows.block():
            rows.put("part, there = digits[begin : begin + 512], cells[used // 4 :]")
            if program.packed.bits > 8:
                rows.put("for i in range(512):", "    codes[i] = np.uint32(part[i])")
                rows.put("pack_codes(codes, 512, bits, room, there, packed[:0])")
            else:
                rows.put("pack_row(viewed(part, np.uint32), bits, there)")
            rows.put("used += 64 * bits")
    return rows.taken()


def unpacking(program: Program) -> list[str]:
    """Return the lines that unpack the codes of the next row."""
    lines = [f"bits = np.int64(widths[row // {program.packed.bucket}])"]
    if program.packed.bits > 8:
        lines.append("unpack_codes(codes, 512, bits, room, cells[used // 4 :], packed[:0])")
    else:
        lines.append("unpack_row(cells[used // 4 :], bits, low_words)")
    return [*lines, "used += 64 * bits"]


def coded(bits: int) -> Store:
    """Return the statement that stores a code of at most `bits` bits."""
    return Store(f"part[{{at}}] = np.uint{8 if bits <= 8 else 16}({{x}})")
