"""Statements over a row in Python for Numba, which widens 32-bit integer arithmetic: each result is converted back."""

from __future__ import annotations

from functools import partial

import numpy as np

from psnode.codecs.rows.formula import OF_ALL, PLACES, SIZE, SUMS, Program
from psnode.codecs.rows.statements import Statements, Store, Then
from psnode.codecs.rows.values import Dtype, Value

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_PREFIX = {"neg": "-{}", "abs": "abs({})", "floor": "np.floor({})", "sqrt": "np.sqrt({})", "not": "~{}"}
_PLAIN = {"where": "({1} if {0} else {2})", "bits": "bits_of({})", "from_bits": "float_of({})"}
_DRAWN = ("random16", "coin", "settle")
_LOW, _HIGH = "np.uint32(words[i] & ONES)", "np.uint32(words[i] >> SIXTEEN)"


class NumbaRows(Statements):
    """Writer of Python statements. `codes` is the expression of one code, with {} for its place in the array.

    A random word serves two coordinates, so loops that use random bits process two coordinates at a time.
    """

    def __init__(self, program: Program, codes: str) -> None:
        super().__init__(program)
        self.codes = codes
        self._one_by_one = False

    def literal(self, value: Value) -> str:
        if value.kind is Dtype.BOOL:
            return str(value.detail)
        number = np.array(value.detail, value.kind.value)
        return f"np.{value.kind.value}({float(number)!r})" if value.kind.real else f"np.{value.kind.value}({int(number)})"

    def expression(self, value: Value, names: list[str]) -> str:
        if value.op == "settle":
            draws = "key, STREAM, row * 512 + i"
            return (
                f"settled({names[0]}, np.float64({names[1]}), {draws})"
                if self._one_by_one
                else f"np.uint32({names[0]} >> SIXTEEN)"
            )
        if value.op in _PLAIN:
            return _PLAIN[value.op].format(*names)
        if value.kind is Dtype.BOOL:
            return f"not {names[0]}" if value.op == "not" else f"{names[0]} {INFIX[value.op]} {names[1]}"
        if value.op == "cast":
            return f"np.{value.kind.value}({names[0]})"
        found = _PREFIX[value.op].format(*names) if value.op in _PREFIX else f"{names[0]} {INFIX[value.op]} {names[1]}"
        return f"np.{value.kind.value}({found})"

    def reduced(self, value: Value) -> str:
        if value.op in OF_ALL:
            return f"{'least_of' if value.op == 'least_magnitude_of_all' else 'top_of'}(tops[{PLACES[value.op]}])"
        if value.op == "key_word":
            word, shift = divmod(int(str(value.detail)), 2)
            return f"np.uint32((key[{word}] >> np.uint64({32 * shift})) & np.uint64(0xFFFFFFFF))"
        if value.op == "l2_norm_of_bucket":
            return "norm"
        if value.op == "size_of_bucket":
            return f"np.uint32(min({512 * int(str(value.detail))}, tops[{SIZE}] - 512 * row))"
        if value.op == "size_of_all":
            return f"np.uint32(tops[{SIZE}])"
        if value.op in SUMS or value.op == "parameter":
            return f"np.{value.kind.value}(tops.view(np.float64)[{self.program.place_of(value)}])"
        if value.op == "any":
            return self._any(value.args[0])
        row = "v" if value.args[0].op == "input" else self.room(value.args[0])
        return {
            "tree_sum": f"sum_512({row}, lanes)",
            "largest": f"largest_512({row})",
            "l2_norm": f"l2_norm({row}, lanes)",
        }[value.op]

    def summed(self, x: Value) -> str:
        """Append the sum of a row by the tree of `sum_512`, and return its name.

        The sum is a float64; it is not finite if float32 overflows.
        """
        self.prepare([x])
        total = self.fresh()
        if any(value.op in _DRAWN for value in self.inside([x])):
            self.put(f"{total} = np.float64(sum_512({self.room(x)}, lanes))")
            return total
        self.put("for i in range(64):")
        with self.block():
            places = ["i", *(f"{64 * k} + i" for k in range(1, 8))]
            a, b, c, d, e, f, g, h = (self.named([x], partial(self._leaf, at, ""), at)[0] for at in places)
            self.put(f"lanes[i] = (({a} + {b}) + ({c} + {d})) + (({e} + {f}) + ({g} + {h}))")
        self.put(f"{total} = np.float64(fold(lanes))")
        return total

    def _any(self, condition: Value) -> str:
        """Append a loop that stores nothing, unless the condition needs an array, and return the result's expression."""
        if any(value.op == "settle" for value in self.inside([condition])):
            self.room(condition)
        found = self.fresh()
        self.put(f"{found} = np.uint32(0)")
        self.run([condition], lambda at, names: [f"{found} = np.uint32({found} | np.uint32({names[0]}))"])
        return f"{found} != np.uint32(0)"

    def assigned(self, value: Value, name: str, expression: str) -> str:
        return f"{name} = {expression}"

    def filled(self) -> list[str]:
        return ["fill(words, key, STREAM, row * 64)"]

    def tossed(self) -> list[str]:
        return ["draw_coins(key, STREAM, row, coin_words, coins)"]

    def kept_in(self, room: str) -> str:
        return room + "[{at}] = {x}"

    def stored(self, end: Value, store: Store) -> None:
        self.prepare([end])
        open_ones = [value.args[0] for value in self.inside([end]) if value.op == "settle"]
        if open_ones:
            self._settled(end, open_ones, store)
        else:
            self.run([end], lambda at, names: store.lines(at, names[0]))

    def loop(self, ends: list[Value], then: Then, random: bool) -> None:
        if (period := min(_periods(self.inside(ends)), default=256)) < 256:
            self._short_loop(ends, then, period)
            return
        self.put(f"for i in range({256 if random else 512}):")
        with self.block():
            self._coordinate(ends, then, "i", _LOW)
            if random:
                self._coordinate(ends, then, "256 + i", _HIGH)

    def _short_loop(self, ends: list[Value], then: Then, period: int) -> None:
        """Append a loop over the coordinates that have their own random bits.

        Each pass of the loop also has the statements for the coordinates that share these bits.
        """
        self.put(f"for i in range({period}):")
        with self.block():
            for first in range(0, 512, period):
                at = f"{first} + i" if first else "i"
                place = at if first < 256 else f"{first - 256} + i"
                word = f"words[{place}] & ONES" if first < 256 else f"words[{place}] >> SIXTEEN"
                self._coordinate(ends, then, at, f"np.uint32({word})", first)

    def _coordinate(self, ends: list[Value], then: Then, at: str, word: str, first: int | None = None) -> None:
        """Name the ends in place `at` and append the statements that use them. With shared random bits, `at` is `first` + i."""
        self.put(*then(at, self.named(ends, partial(self._leaf, at, word, first=first), at)))

    def _leaf(self, at: str, word: str, value: Value, first: int | None = None) -> str | None:
        """Return the expression that reads `value` at place `at` of a loop, or None if `value` must be computed instead."""
        leaves = {"input": f"v[{at}]", "codes": self.codes.format(at), "coin": f"coins[{at}] != np.uint8(0)"}
        leaves["place_in_row"] = f"np.uint32({at})"
        if value.op != "random16" or value.detail == 512:
            return word if value.op == "random16" else leaves.get(value.op)
        period = int(str(value.detail))
        return f"np.uint32(words[{f'{at} & {period - 1}' if first is None else f'{first % period} + i'}] & ONES)"

    def _settled(self, end: Value, open_ones: list[Value], store: Store) -> None:
        """Append a loop that settles with 16 bits, and a second loop with further bits, which runs for rows with a tie."""
        self.put("worst = np.uint32(0)")

        def first(at: str, names: list[str]) -> list[str]:
            noted = [f"worst = max(worst, np.uint32({name} & ONES))" for name in names[1:]]
            return [*noted, *store.lines(at, names[0])]

        self.run([end, *open_ones], first)
        with self.when("worst == ONES"):
            self.put("for i in range(512):")
            with self.block():
                self.put("half = np.uint32(words[i] & ONES) if i < 256 else np.uint32(words[i - 256] >> SIXTEEN)")
                self._one_by_one = True
                self._coordinate([end], lambda at, names: store.lines(at, names[0]), "i", "half")
                self._one_by_one = False


def _periods(values: list[Value]) -> set[int]:
    """Return the periods after which random bits are repeated."""
    return {int(str(value.detail)) for value in values if value.op == "random16"}


def rooms_of(rows: NumbaRows) -> list[str]:
    """Return the statements that allocate memory for a row's random words and coins, and for values of all its coordinates."""
    lines = []
    if rows.uses_random:
        lines.append("    words = np.empty(256, np.uint32)")
    if rows.uses_coins:
        lines.append("    coins, coin_words = np.empty(512, np.uint8), np.zeros(257, np.uint32)")
    return lines + [
        f"    {name} = np.empty(512, np.{'bool_' if kind is Dtype.BOOL else kind.value})" for name, kind in rows.rooms
    ]
