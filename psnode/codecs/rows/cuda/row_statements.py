"""Statements over a row in C++ for CUDA, with the macros of psnode/codecs/rows/cuda. A row is held in 16 registers of a warp.

Numbers of a row have plain types. They are copied to all lanes when they are combined with coordinates. Arithmetic of int32 is
done in uint32, whose overflow is defined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from psnode.codecs.rows.formula import OF_ALL, OF_BUCKET, PLACES, SIZE, SUMS
from psnode.codecs.rows.numba.number_functions import INFIX
from psnode.codecs.rows.statements import Statements, Store, Then
from psnode.codecs.rows.values import Dtype, Span, Value

LANES = {Dtype.F32: "F32", Dtype.F64: "F64", Dtype.I32: "I32", Dtype.U32: "U32", Dtype.BOOL: "MASK"}
PLAIN = {
    Dtype.F32: "float",
    Dtype.F64: "double",
    Dtype.I32: "int",
    Dtype.U32: "uint32",
    Dtype.BOOL: "bool",
}
_COMPARED = ("lt", "le", "gt", "ge", "eq", "ne")
_MODULAR = ("add", "sub", "mul", "shl")
_FUNCTIONS = ("floor", "sqrt", "abs")


class CudaRows(Statements):
    """Writer of C++ statements for CUDA. Loops are unrolled, so that all values are in registers."""

    opening, otherwise, closing = "if ({}) {{", "}} else {{".format(), "}"

    def literal(self, value: Value) -> str:
        if value.kind is Dtype.BOOL:
            return str(value.detail).lower()
        number = np.array(value.detail, value.kind.value)
        if value.kind.real:
            return f"({float(number).hex()}{'f' if value.kind is Dtype.F32 else ''})"
        return f"{int(number)}u" if value.kind is Dtype.U32 else f"(int){int(number) & 0xFFFFFFFF}u"

    def lane(self, value: Value, name: str) -> str:
        """Return the name of `value` as an operand in a loop over coordinates. A number of the row is spread over the lanes."""
        return name if value.span is Span.COORDINATE else f"SPREAD_{LANES[value.kind]}({name})"

    def computed(self, end: Value) -> str:
        return self.expression(end, [self.number(arg) for arg in end.args])

    def named(self, ends: list[Value], leaf: Callable[[Value], str | None], at: str) -> list[str]:
        names: dict[Value, str] = {}

        def name_of(value: Value) -> str:
            if value.op == "constant":
                return self.literal(value)
            return self.known(value, at) or names[value]

        for value in self.inside(ends):
            found = leaf(value) or self.expression(value, [self.lane(arg, name_of(arg)) for arg in value.args])
            names[value] = self.fresh()
            self.put(self.assigned(value, names[value], found))
        return [self.lane(end, name_of(end)) for end in ends]

    def expression(self, value: Value, names: list[str]) -> str:
        """Return the expression of one operation. `names` are the names of its operands."""
        wide = value.span is Span.COORDINATE
        if value.op in ("shl", "shr"):
            names = [names[0], str(value.args[1].detail)]
        if value.op in INFIX:
            return self._infix(value, names, wide)
        if value.op == "settle":
            exact = names[1] if value.args[1].kind is Dtype.F64 else f"TO_F64({names[1]})"
            return f"settle({names[0]}, {exact}, key, {self.program.stream}, 512 * row + 32 * k)"
        if value.op == "cast":
            word = "MASK_TO_U32" if value.args[0].kind is Dtype.BOOL else f"TO_{LANES[value.kind]}"
            return f"{word}({names[0]})" if wide else f"({PLAIN[value.kind]})({names[0]})"
        if value.op in _FUNCTIONS:
            plain = value.op.replace("abs", "fabs") + ("f" if value.kind is Dtype.F32 else "")
            return f"{value.op.upper() if wide else plain}({names[0]})"
        if value.op == "where":
            return f"SELECT({', '.join(names)})" if wide else f"{names[0]} ? {names[1]} : {names[2]}"
        if value.op == "not":
            return (f"NOT({names[0]})" if wide else f"!{names[0]}") if value.kind is Dtype.BOOL else f"~{names[0]}"
        if value.op == "neg":
            types = LANES if wide else PLAIN
            return f"({types[Dtype.I32]})(-({types[Dtype.U32]}){names[0]})" if value.kind is Dtype.I32 else f"-{names[0]}"
        return {"bits": "BITS({})" if wide else "bits_of({})", "from_bits": "FROM_BITS({})" if wide else "float_of({})"}[
            value.op
        ].format(*names)

    def _infix(self, value: Value, names: list[str], wide: bool) -> str:
        if value.op in _COMPARED and wide:
            return f"{value.op.upper()}({names[0]}, {names[1]})"
        if value.kind is Dtype.I32 and value.op in _MODULAR:
            types = LANES if wide else PLAIN
            unsigned = f"({types[Dtype.U32]})"
            second = names[1] if value.op == "shl" else f"{unsigned}{names[1]}"
            return f"({types[Dtype.I32]})({unsigned}{names[0]} {INFIX[value.op]} {second})"
        return f"{names[0]} {INFIX[value.op]} {names[1]}"

    def reduced(self, value: Value) -> str:
        if value.op in OF_ALL:
            return f"{'least_of' if value.op == 'least_magnitude_of_all' else 'top_of'}(tops[{PLACES[value.op]}])"
        if value.op == "key_word":
            return f"key[{value.detail}]"
        if value.op in OF_BUCKET:
            return (
                "bucket_norm(x + 512 * (uint64)(row - first))"
                if value.op == "l2_norm_of_bucket"
                else f"size_of_bucket((uint32)tops[{SIZE}], row)"
            )
        if value.op == "size_of_all":
            return f"(uint32)tops[{SIZE}]"
        if value.op == "parameter":
            return self.literal(value)  # a register for a number that is always the same could make others spill
        if value.op in SUMS:
            return f"({PLAIN[value.kind]})((const double *)tops)[{self.program.place_of(value)}]"
        row = "v" if value.args[0].op == "input" else self.room(value.args[0])
        return f"{'any_of' if value.op == 'any' else value.op}({row})"

    def assigned(self, value: Value, name: str, expression: str) -> str:
        return f"const {(LANES if value.span is Span.COORDINATE else PLAIN)[value.kind]} {name} = {expression};"

    def filled(self) -> list[str]:
        return ["U32 words[8];", f"draw(words, key, {self.program.stream}, row);"]

    def tossed(self) -> list[str]:
        return [f"const U32 coins = toss(key, {self.program.stream}, row);"]

    def kept_in(self, room: str) -> str:
        return room + "[{at}] = {x};"

    def stored(self, end: Value, store: Store) -> None:
        self.run([end], lambda at, names: store.lines(at, names[0]))

    def loop(self, ends: list[Value], then: Then, random: bool) -> None:
        self.put("EACH(k) {")
        with self.block():
            self.put(*then("k", self.named(ends, _leaf, "k")))
        self.put("}")


def _leaf(value: Value) -> str | None:
    if value.op == "random16" and value.detail != 512:
        return f"SIXTEEN(words, k % {int(str(value.detail)) // 32})"
    leaves = {"input": "v[k]", "codes": "codes[k]", "random16": "SIXTEEN(words, k)", "coin": "COIN(coins, k)"}
    return {**leaves, "place_in_row": "LANE + 32 * k"}.get(value.op)


def rooms_of(rows: CudaRows) -> list[str]:
    """Return the statements that declare arrays for values of all coordinates of a row."""
    return [f"        {LANES[kind]} {name}[16];" for name, kind in rows.rooms]
