"""Base of generated Numba kernels: access to the numbers of the body, and packing of the codes of a row."""

from __future__ import annotations

from psnode.codecs.rows.formula import Column, Program
from psnode.codecs.rows.numba.fitted_buckets import coded, unpacking, widths_of
from psnode.codecs.rows.numba.number_functions import NumberFunctions
from psnode.codecs.rows.numba.row_statements import NumbaRows, rooms_of
from psnode.codecs.rows.packings import Packed
from psnode.codecs.rows.statements import Store, place_of
from psnode.codecs.rows.values import Dtype, Value

PART = "part = digits[start % {0} : start % {0} + 512]"
_PARTS = [
    "        if adding and start % {0} == 0:",
    "            cursor = add_parts(parts, cursor, start, min(start + {0}, x.size))",
    "            if cursor == NOT_FINITE:",
    "                return {1}",
]  # parts are added to a stretch: rows that are packed together, or as many as fit into the first-level cache
_VIEWS = {Dtype.F32: "viewed(side, np.float32)", Dtype.I32: "viewed(side, np.int32)", Dtype.U32: "side"}


class Kernel:
    """Base of the generators of kernels that encode or decode rows."""

    def __init__(self, program: Program, functions: NumberFunctions, decodes: bool = False) -> None:
        self.program = program
        self.columns = program.numbers
        array, self.coded = _coded(program.packed, decodes)
        found = f"np.uint32({array}[{{}}])"
        self.rows = NumbaRows(program, functions, f"({found} != np.uint32(0))" if program.packed.form == "signs" else found)

    @property
    def digits(self) -> int:
        """The number of coordinates of a unit."""
        return 512 * self.program.packed.rows

    def scratch(self) -> list[str]:
        """Return the lines that allocate the scratch memory that the kernel uses for a row."""
        lines = ["    room = new_rows()", "    low, low_words, lanes = room.low, room.low_words, np.empty(576, np.float32)"]
        if self.program.packed.form == "sparse":
            return [*lines, f"    digits, used = np.empty({self.digits}, np.uint8), 0", *rooms_of(self.rows)]
        lines.append("    memory = uncounted(viewed(packed, np.float32))")
        if self.program.packed.form == "fitted":
            kind = "uint8" if self.program.packed.bits <= 8 else "uint16"
            lines.append(f"    digits, used = np.empty({self.digits}, np.{kind}), 0")
        if self.program.packed.bits > 8 and self.program.packed.form in ("planes", "fitted"):
            lines.append("    codes = np.zeros(512, np.uint32)")
        if self.program.packed.form == "halves":
            lines.append("    halves = viewed(memory, np.uint16)")
        elif self.program.packed.form == "trits":
            lines.append("    digits, bytes_of_digits = np.empty(2560, np.uint8), viewed(memory, np.uint8)")
        else:
            lines.append("    cells = viewed(memory, np.uint32)")
        return lines + rooms_of(self.rows)

    def views(self) -> list[str]:
        """Return the lines that define views of the numbers before the packing, one view for each kind of number."""
        kinds = sorted({column.value.kind.value for column in self.columns})
        return [*(f"    {kind}s = {_VIEWS[Dtype(kind)]}" for kind in kinds), *widths_of(self.program)]

    def place(self, column: Column) -> str:
        """Return the expression that accesses the number of a column for the row `row`."""
        return f"{column.value.kind.value}s[{place_of(self.program, column, '//')}]"

    def width(self, width: Value | None) -> list[str]:
        """Return the line that defines the width of the codes, or no line if the width is fixed."""
        return [] if width is None else [f"bits = np.int64({self.rows.number(width)})"]

    def packing(self, verb: str) -> list[str]:
        """Return the lines that pack a row's codes (`verb` "pack") or unpack them."""
        form, most = self.program.packed.form, self.program.packed.bits
        bits: int | str = most
        here = f"cells[start // 512 * {16 * most} :]"
        if self.program.width is not None:
            bits, here = "bits", "cells[start // 512 * 16 * bits :]"
        if form == "halves":
            return []
        if form == "trits":
            here = "bytes_of_digits[start // 2560 * 512 : start // 2560 * 512 + 512]"
            if verb == "pack":
                return ["if start % 2560 == 2048:", f"    pack(digits, {here})"]
            return ["if start % 2560 == 0:", f"    unpack({here}, digits)", PART.format(2560)]
        if form == "sparse":
            if verb == "pack":
                return [f"if start % {self.digits} == {self.digits - 512}:", "    used += pack_block(digits, packed[used:])"]
            load = [
                "    dense = packed[used] & packed[used + 1] == np.uint8(255)",
                "    used += unpack_block(packed[used:], digits)",
            ]
            return [f"if start % {self.digits} == 0:", *load, PART.format(self.digits)]
        if form == "fitted":
            return unpacking(self.program)
        if form == "signs":
            return [f"{verb}_signs(low, {here})" if verb == "pack" else f"{verb}_signs({here}, low)"]
        if most > 8:
            return [f"{verb}_codes(codes, 512, {bits}, room, {here}, packed[:0])"]
        return [f"{verb}_row(low_words, {bits}, {here})" if verb == "pack" else f"{verb}_row({here}, {bits}, low_words)"]

    def adding(self, refused: str = "start") -> list[str]:
        """Return the lines that add parts to some rows in memory, and that return `refused` if a part is not finite."""
        packed = self.program.packed
        return [line.format(512 * (packed.rows if packed.form == "fitted" else max(4, packed.rows)), refused) for line in _PARTS]


def _coded(packed: Packed, decodes: bool) -> tuple[str, Store]:
    """Return the name of the array that holds the codes of a row, and the statement that stores a code."""
    if packed.form == "halves":
        return "part", Store("part[{at}] = np.uint16({x})")
    if packed.form == "fitted" and not decodes:
        return "part", coded(packed.bits)
    if packed.rows > 1 and packed.form != "fitted":
        return "part", Store("part[{at}] = np.uint8({x})")
    if packed.bits > 8:
        return "codes", Store("codes[{at}] = {x}")
    return "low", Store("low[{at}] = np.uint8({x})")
