"""Statements over a row in Python, for Numba, which widens the arithmetic of 32-bit integers: each result is converted back."""

from __future__ import annotations

import numpy as np

from psnode.codecs.rows.formula import OF_ALL, Program
from psnode.codecs.rows.statements import Statements, Store, Then
from psnode.codecs.rows.values import Kind, Value

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_PREFIX = {"neg": "-{}", "abs": "abs({})", "floor": "np.floor({})", "sqrt": "np.sqrt({})", "not": "~{}"}
_PLAIN = {"where": "({1} if {0} else {2})", "bits": "bits_of({})", "from_bits": "float_of({})"}
_LOW, _HIGH = "np.uint32(words[i] & ONES)", "np.uint32(words[i] >> SIXTEEN)"


class NumbaRows(Statements):
    """`codes`: the expression of the code in place {}. A random word serves two coordinates: such loops take two at a time."""

    def __init__(self, program: Program, codes: str) -> None:
        super().__init__(program)
        self.codes = codes

    def literal(self, value: Value) -> str:
        if value.kind is Kind.BOOL:
            return str(value.detail)
        number = np.array(value.detail, value.kind.value)
        return f"np.{value.kind.value}({float(number)!r})" if value.kind.real else f"np.{value.kind.value}({int(number)})"

    def expression(self, value: Value, names: list[str]) -> str:
        if value.op in _PLAIN:
            return _PLAIN[value.op].format(*names)
        if value.kind is Kind.BOOL:
            return f"not {names[0]}" if value.op == "not" else f"{names[0]} {INFIX[value.op]} {names[1]}"
        if value.op == "cast":
            return f"np.{value.kind.value}({names[0]})"
        found = _PREFIX[value.op].format(*names) if value.op in _PREFIX else f"{names[0]} {INFIX[value.op]} {names[1]}"
        return f"np.{value.kind.value}({found})"

    def reduced(self, value: Value) -> str:
        if value.op in OF_ALL:
            return f"top_of(tops[{OF_ALL.index(value.op)}])"
        row = "v" if value.args[0].op == "input" else self.room(value.args[0])
        return {
            "any": f"bool({row}.any())",
            "tree_sum": f"sum_512({row}, lanes)",
            "largest": f"largest_512({row})",
            "l2_norm": f"l2_norm({row}, lanes)",
        }[value.op]

    def assigned(self, value: Value, name: str, expression: str) -> str:
        return f"{name} = {expression}"

    def filled(self) -> list[str]:
        return [f"fill(words, key, {self.program.stream}, row * 64)"]

    def kept_in(self, room: str) -> str:
        return room + "[{at}] = {x}"

    def is_whole(self, value: Value) -> bool:
        return value.op == "settle"

    def stored(self, end: Value, store: Store) -> None:
        if end.op == "settle" and end not in self._names:
            if store.more:
                self._settled(end, store)
                return
            self.room(end)
        self.run([end], lambda at, names: [store.line(at, names[0])])

    def loop(self, ends: list[Value], then: Then, random: bool) -> None:
        self.put(f"for i in range({256 if random else 512}):")
        with self.block():
            self._coordinate(ends, then, "i", _LOW)
            if random:
                self._coordinate(ends, then, "256 + i", _HIGH)

    def _coordinate(self, ends: list[Value], then: Then, at: str, word: str) -> None:
        leaves = {"input": f"v[{at}]", "codes": self.codes.format(at), "random16": word}
        self.put(*then(at, self.named(ends, lambda value: leaves.get(value.op), at)))

    def _settled(self, value: Value, store: Store) -> None:
        """Codes by 16 bits each, and then those that these leave open, one by one."""
        fixed, exact = value.args
        self.prepare([exact])
        self.put("worst = np.uint32(0)")

        def first(at: str, names: list[str]) -> list[str]:
            code = f"np.uint32({names[0]} >> SIXTEEN)"
            return [f"worst = max(worst, np.uint32({names[0]} & ONES))", store.line(at, code)]

        self.run([fixed], first)
        with self.when("worst == ONES"):
            self.put("for i in range(512):")
            with self.block():
                self.put("half = np.uint32(words[i] & ONES) if i < 256 else np.uint32(words[i - 256] >> SIXTEEN)")

                def again(at: str, names: list[str]) -> list[str]:
                    draws = f"key, {self.program.stream}, row * 512 + i"
                    tie = f"np.uint32({names[0]} & ONES) == ONES and goes_up(np.float64({names[1]}), {draws})"
                    return [f"if {tie}:", "    " + store.more.format(at=at)]

                self._coordinate([fixed, exact], again, "i", "half")
