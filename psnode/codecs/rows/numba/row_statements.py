"""Statements over a row in Python for Numba. Loops over the row call functions of instructions, which compute the values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from psnode.codecs.rows.formula import OF_ALL, PLACES, SIZE, SUMS, Program
from psnode.codecs.rows.numba.number_functions import NumberFunctions, literal
from psnode.codecs.rows.statements import Statements, Store, Then, is_leaf
from psnode.codecs.rows.values import Dtype, Span, Value, below

_DRAWN = ("random16", "coin", "settle")
_LOW, _HIGH = "low_half(words[i])", "high_half(words[i])"


class NumbaRows(Statements):
    """Writer of Python statements for Numba. `codes` is the expression of one code, with {} for its index in the array.

    A random word serves two coordinates, so loops that use random bits process two coordinates at a time.
    """

    def __init__(self, program: Program, functions: NumberFunctions, codes: str) -> None:
        super().__init__(program)
        self.functions, self.codes = functions, codes
        self._one_by_one = False

    def literal(self, value: Value) -> str:
        return literal(value)

    def computed(self, end: Value) -> str:
        for value in self._leaves(end):
            self.number(value)
        return self.functions.call([end], self._names.get)

    def _leaves(self, end: Value) -> list[Value]:
        """Return the numbers on which `end` depends and which no function can compute."""
        ahead, seen, found = [end], set[Value](), []
        while ahead:
            value = ahead.pop()
            if value in seen or value in self._names:
                continue
            seen.add(value)
            if is_leaf(value):
                found.append(value)
            else:
                ahead.extend(value.args)
        return found

    def numbers(self, ends: list[Value], span: Span = Span.ARRAY) -> None:
        values = list(below(ends, known=list(self._names)))
        used = {arg for value in values if value.span is not span for arg in value.args} | set(ends)
        for value in values:
            if value.span is span and value in used:
                self.number(value)

    def named(self, ends: list[Value], leaf: Callable[[Value], str | None], at: str) -> list[str]:
        settled: dict[Value, str] = {}

        def outside(value: Value) -> str | None:
            return settled.get(value) or self.known(value, at) or leaf(value)

        for value in self.inside(ends):
            if value.op == "settle" and self._one_by_one:
                fixed, exact = self._called(value.args, outside)
                settled[value] = self.fresh()
                self.put(f"{settled[value]} = settled({fixed}, np.float64({exact}), key, STREAM, row * 512 + i)")
        return self._called(ends, outside)

    def _called(self, ends: Sequence[Value], outside: Callable[[Value], str | None]) -> list[str]:
        """Append the call that computes those of `ends` that are not known, and return the expressions of all `ends`."""
        names = {end: literal(end) if end.op == "constant" else outside(end) for end in ends}
        unknown = [end for end, name in names.items() if name is None]
        if unknown:
            made = {end: self.fresh() for end in unknown}
            self.put(f"{', '.join(made.values())} = {self.functions.call(unknown, outside)}")
            names |= made
        return [str(names[end]) for end in ends]

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
            return f"np.{value.kind.value}(viewed(tops, np.float64)[{self.program.place_of(value)}])"
        if value.op == "any":
            return self._any(value.args[0])
        row = "v" if value.args[0].op == "input" else self.room(value.args[0])
        return {
            "tree_sum": f"sum_512({row}, lanes)",
            "largest": f"largest_512({row})",
            "l2_norm": f"l2_norm({row}, lanes)",
        }[value.op]

    def summed(self, x: Value) -> str:
        """Append the statements that sum a row by the tree of `sum_512`, and return the name of the sum.

        The sum is a float64. It is not finite if a sum in float32 overflows.
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
        """Append a loop that checks whether `condition` holds for a coordinate, and return the expression of the result.

        Values are stored in an array only if the condition needs one.
        """
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
        """Append a loop over the first `period` coordinates. The later coordinates repeat the random bits of these.

        Each pass of the loop also contains the statements for all coordinates with the same bits.
        """
        self.put(f"for i in range({period}):")
        with self.block():
            for first in range(0, 512, period):
                at = f"{first} + i" if first else "i"
                word = f"low_half(words[{at}])" if first < 256 else f"high_half(words[{first - 256} + i])"
                self._coordinate(ends, then, at, word, first)

    def _coordinate(self, ends: list[Value], then: Then, at: str, word: str, first: int | None = None) -> None:
        """Append the statements that compute the ends at index `at` and use them.

        With shared random bits, `at` is `first` + i.
        """
        self.put(*then(at, self.named(ends, partial(self._leaf, at, word, first=first), at)))

    def _leaf(self, at: str, word: str, value: Value, first: int | None = None) -> str | None:
        """Return the expression that reads `value` at index `at` of a loop, or None if `value` must be computed instead."""
        leaves = {"input": f"v[{at}]", "codes": self.codes.format(at), "coin": f"coins[{at}] != np.uint8(0)"}
        leaves["place_in_row"] = at  # the function takes it as a uint32
        if value.op != "random16" or value.detail == 512:
            return word if value.op == "random16" else leaves.get(value.op)
        period = int(str(value.detail))
        return f"low_half(words[{f'{at} & {period - 1}' if first is None else f'{first % period} + i'}])"

    def _settled(self, end: Value, open_ones: list[Value], store: Store) -> None:
        """Append a loop that settles the rounding with 16 random bits, and a second loop with further bits.

        The second loop runs only for rows with a value that 16 bits leave open.
        """
        self.put("worst = np.uint32(0)")

        def first(at: str, names: list[str]) -> list[str]:
            noted = [f"worst = max(worst, low_half({name}))" for name in names[1:]]
            return [*noted, *store.lines(at, names[0])]

        self.run([end, *open_ones], first)
        with self.when("worst == ONES"):
            self.put("for i in range(512):")
            with self.block():
                self.put("half = low_half(words[i]) if i < 256 else high_half(words[i - 256])")
                self._one_by_one = True
                self._coordinate([end], lambda at, names: store.lines(at, names[0]), "i", "half")
                self._one_by_one = False


def _periods(values: list[Value]) -> set[int]:
    """Return the periods after which the random bits in `values` are repeated."""
    return {int(str(value.detail)) for value in values if value.op == "random16"}


def rooms_of(rows: NumbaRows) -> list[str]:
    """Return the statements that allocate memory for a row's random words, its coins, and values of all its coordinates."""
    lines = []
    if rows.uses_random:
        lines.append("    words = np.empty(256, np.uint32)")
    if rows.uses_coins:
        lines.append("    coins, coin_words = np.empty(512, np.uint8), np.zeros(257, np.uint32)")
    return lines + [
        f"    {name} = np.empty(512, np.{'bool_' if kind is Dtype.BOOL else kind.value})" for name, kind in rows.rooms
    ]
