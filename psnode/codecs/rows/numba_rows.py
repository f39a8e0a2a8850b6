"""Statements over a row, in Python for Numba: numbers, loops over 512 coordinates, ifs with such loops in them.

Numba widens the arithmetic of 32-bit integers, so each result is converted back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from psnode.codecs.rows.formula import OF_ALL, Program
from psnode.codecs.rows.values import Kind, Span, Value, below

_INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|", "xor": "^", "shl": "<<", "shr": ">>",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}  # fmt: skip
_PREFIX = {"neg": "-{}", "abs": "abs({})", "floor": "np.floor({})", "sqrt": "np.sqrt({})"}
_PLAIN = {"where": "({1} if {0} else {2})", "bits": "bits_of({})", "from_bits": "float_of({})"}


class Store(NamedTuple):
    """The place of a row's values: an array, how a value is put there, its kind, and = or += or -=."""

    name: str
    form: str
    kind: Kind
    sign: str = "="

    def line(self, at: str, value: str) -> str:
        """The statement that stores `value` in place `at`."""
        return f"{self.name}[{at}] {self.sign} {self.form.format(value)}"


class Rows:
    """A writer of statements. `codes`: the expression of the code in place {}. `rooms`: arrays that it needed."""

    def __init__(self, program: Program, codes: str, indent: int) -> None:
        self.program, self.codes, self.indent = program, codes, indent
        self.rooms: list[tuple[str, Kind]] = []
        self.uses_random = False
        self._lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._filled = False
        self._count = 0

    def put(self, *lines: str) -> None:
        """Statements as they are."""
        self._lines += ["    " * self.indent + line for line in lines]

    def taken(self) -> list[str]:
        """The lines since the last time."""
        lines, self._lines = self._lines, []
        return lines

    @contextmanager
    def block(self) -> Iterator[None]:
        """An indented block: what is computed in it is known in it alone."""
        kept = dict(self._names), self._filled
        self.indent += 1
        yield
        self.indent -= 1
        self._names, self._filled = kept

    def define(self, value: Value, expression: str) -> str:
        """A name for `value`, which is computed here."""
        name = self._names[value] = f"n{self._next()}"
        self.put(f"{name} = {expression}")
        return name

    def number(self, end: Value) -> str:
        """The name of a number of a row or the array, computed here unless it is known; or a constant."""
        if end.op == "constant":
            return _literal(end)
        if end not in self._names:
            if end.args and end.args[0].span is Span.COORDINATE:
                self.define(end, self._reduced(end))
            else:
                self.define(end, _expression(end, [self.number(arg) for arg in end.args]))
        return self._names[end]

    def into(self, end: Value, store: Store) -> None:
        """Store a value of every coordinate."""
        if _branches(end):
            condition, yes, no = end.args
            self.put(f"if {self.number(condition)}:")
            with self.block():
                self.into(yes, store)
            self.put("else:")
            with self.block():
                self.into(no, store)
        elif end.op == "settle" and store.sign == "=":
            self._settled(end, store)
        else:
            self._loop([end], lambda i, names: [store.line(i, names[0])])

    def _reduced(self, value: Value) -> str:
        """The expression of a sum, an extreme or a norm."""
        if value.op in OF_ALL:
            return f"top_of(tops[{OF_ALL.index(value.op)}])"
        row = "v" if value.args[0].op == "input" else self._room(value.args[0])
        if value.op == "any":
            return f"bool({row}.any())"
        return {
            "tree_sum": f"sum_512({row}, lanes)",
            "largest": f"np.float32(max_norm({row}))",
            "l2_norm": f"l2_norm({row}, lanes)",
        }[value.op]

    def _room(self, value: Value) -> str:
        """The name of an array that holds `value`, filled here unless it was."""
        if value not in self._names:
            name = f"room{len(self.rooms)}"
            self.rooms.append((name, value.kind))
            self.into(value, Store(name, "{}", value.kind))
            self._names[value] = name
        return self._names[value]

    def _settled(self, value: Value, store: Store) -> None:
        """Codes by 16 bits each, and then those that these leave open."""
        fixed, exact = value.args
        self.put("worst = np.uint32(0)")
        code = "np.uint32({} >> SIXTEEN)".format

        def first(i: str, names: list[str]) -> list[str]:
            return [f"worst = max(worst, np.uint32({names[0]} & ONES))", store.line(i, code(names[0]))]

        self._loop([fixed], first)
        self.put("if worst == ONES:")
        with self.block():
            draws = f"key, {self.program.stream}, row * 512 + i"

            def again(i: str, names: list[str]) -> list[str]:
                tie = f"np.uint32({names[0]} & ONES) == ONES and goes_up(np.float64({names[1]}), {draws})"
                return [f"if {tie}:", "    " + store._replace(sign="+=").line(i, "np.uint32(1)")]

            self._loop([fixed, exact], again, halved=False)

    def _loop(self, ends: list[Value], then, halved: bool = True) -> None:  # type: ignore[no-untyped-def]
        """A loop over the row with what `ends` are made of; `then`: the statements, from a place and the names of the ends."""
        self._prepare(ends)
        random = any(value.op == "random16" for value in self._inside(ends))
        if random and not self._filled:
            self.put(f"fill(words, key, {self.program.stream}, row * 64)")
            self._filled = self.uses_random = True
        self.put(f"for i in range({256 if random and halved else 512}):")
        with self.block():
            if random and not halved:
                self.put("half = np.uint32(words[i] & ONES) if i < 256 else np.uint32(words[i - 256] >> SIXTEEN)")
                halves = [("i", "half")]
            else:
                halves = [("i", "np.uint32(words[i] & ONES)"), ("256 + i", "np.uint32(words[i] >> SIXTEEN)")][: 1 + random]
            for place, word in halves:
                names = self._coordinate(ends, place, word)
                self.put(*then(place, names))

    def _inside(self, ends: list[Value]) -> list[Value]:
        """What is computed in a loop for `ends`: the values of coordinates that lie in no room."""
        return [value for value in below(ends, known=list(self._names)) if value.span is Span.COORDINATE]

    def _prepare(self, ends: list[Value]) -> None:
        """Numbers, and rooms for what cannot be computed inside a loop."""
        ahead, seen = list(ends), set[Value]()
        while ahead:
            value = ahead.pop()
            if value in seen or value in self._names:
                continue
            seen.add(value)
            if value.span < Span.COORDINATE:
                self.number(value)
            elif value.op == "settle" or _branches(value):
                self._room(value)
            else:
                ahead.extend(value.args)

    def _coordinate(self, ends: list[Value], place: str, word: str) -> list[str]:
        """Names of the values of one coordinate."""
        names: dict[Value, str] = {}

        def name_of(value: Value) -> str:
            if value.op == "constant":
                return _literal(value)
            if value in self._names:
                return f"{self._names[value]}[{place}]" if value.span is Span.COORDINATE else self._names[value]
            return names[value]

        for value in self._inside(ends):
            leaf = {"input": f"v[{place}]", "codes": self.codes.format(place), "random16": word}.get(value.op)
            names[value] = f"n{self._next()}"
            self.put(f"{names[value]} = {leaf or _expression(value, [name_of(arg) for arg in value.args])}")
        return [name_of(end) for end in ends]

    def _next(self) -> int:
        self._count += 1
        return self._count


def _branches(value: Value) -> bool:
    """True for a `where` of a row or the array between values of coordinates."""
    return value.op == "where" and value.span is Span.COORDINATE and value.args[0].span < Span.COORDINATE


def _literal(value: Value) -> str:
    if value.kind is Kind.BOOL:
        return str(value.detail)
    number = np.array(value.detail, value.kind.value)
    return f"np.{value.kind.value}({float(number)!r})" if value.kind.real else f"np.{value.kind.value}({int(number)})"


def _expression(value: Value, names: list[str]) -> str:
    """One operation on values that have names."""
    if value.op in _PLAIN:
        return _PLAIN[value.op].format(*names)
    if value.op == "not" and value.kind is Kind.BOOL:
        return f"not {names[0]}"
    if value.kind is Kind.BOOL:
        return f"{names[0]} {_INFIX[value.op]} {names[1]}"
    if value.op == "cast":
        return f"np.{value.kind.value}({names[0]})"
    found = _PREFIX[value.op].format(*names) if value.op in _PREFIX else ""
    if value.op == "not":
        found = f"~{names[0]}"
    return f"np.{value.kind.value}({found or f'{names[0]} {_INFIX[value.op]} {names[1]}'})"
