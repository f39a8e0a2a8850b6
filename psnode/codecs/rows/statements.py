"""Statements over a row: numbers, loops over 512 coordinates, ifs with such loops in them. Languages derive from this.

The operands of a value are computed where the value is needed: in the loop that stores it; or before that loop, if it is a number
of the row, or has to be there as a whole, in a room of its own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from psnode.codecs.rows.formula import OF_INPUT, Column, Program
from psnode.codecs.rows.values import Dtype, Span, Value, below

Then = Callable[[str, list[str]], list[str]]


class Store(NamedTuple):
    """The statement that stores a value {x} in place {at}, and one that goes with it, about the place alone."""

    form: str
    beside: str = ""

    def lines(self, at: str, x: str) -> list[str]:
        """The statements themselves."""
        return [self.form.format(at=at, x=x), self.beside.format(at=at)]


class Statements(ABC):
    """A writer of statements; `rooms`: arrays of 512 that were needed. `uses_random`, `uses_coins`: whether such are drawn."""

    opening, otherwise, closing = "if {}:", "else:", ""

    def __init__(self, program: Program) -> None:
        self.program, self.indent = program, 1
        self.rooms: list[tuple[str, Dtype]] = []
        self.uses_random = self.uses_coins = False
        self._lines: list[str] = []
        self._names: dict[Value, str] = {}
        self._filled = self._tossed = False
        self._count = 0

    @abstractmethod
    def literal(self, value: Value) -> str:
        """A constant."""

    @abstractmethod
    def expression(self, value: Value, names: list[str]) -> str:
        """One operation on values that have names."""

    @abstractmethod
    def reduced(self, value: Value) -> str:
        """The expression of a number of the row that is made of all its coordinates, or of the whole input."""

    @abstractmethod
    def assigned(self, value: Value, name: str, expression: str) -> str:
        """The statement that gives `expression` a name."""

    @abstractmethod
    def filled(self) -> list[str]:
        """The statements that draw a row's random words."""

    @abstractmethod
    def tossed(self) -> list[str]:
        """The statements that draw a row's coins."""

    @abstractmethod
    def loop(self, ends: list[Value], then: Then, random: bool) -> None:
        """A loop over the row with the operands of `ends`; `then`: the statements, from a place and the names of the ends."""

    @abstractmethod
    def stored(self, end: Value, store: Store) -> None:
        """Store a value of every coordinate that is no branch."""

    def put(self, *lines: str) -> None:
        """Statements as they are."""
        self._lines += ["    " * self.indent + line for line in lines if line]

    def taken(self) -> list[str]:
        """The lines since the last time."""
        lines, self._lines = self._lines, []
        return lines

    @contextmanager
    def block(self) -> Iterator[None]:
        """An indented block: values computed in it are known in it alone."""
        kept = dict(self._names), self._filled, self._tossed
        self.indent += 1
        yield
        self.indent -= 1
        self._names, self._filled, self._tossed = kept

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """A block under a condition."""
        self.put(self.opening.format(condition))
        with self.block():
            yield
        self.put(self.closing)

    def define(self, value: Value, expression: str) -> str:
        """A name for `value`, which is computed here."""
        name = self._names[value] = self.fresh()
        self.put(self.assigned(value, name, expression))
        return name

    def number(self, end: Value) -> str:
        """The name of a number of a row or the array, computed here unless it is known; or a constant."""
        if end.op == "constant":
            return self.literal(end)
        if end not in self._names:
            if end.op in OF_INPUT or (end.args and end.args[0].span is Span.COORDINATE):
                self.define(end, self.reduced(end))
            else:
                self.define(end, self.expression(end, [self.number(arg) for arg in end.args]))
        return self._names[end]

    def numbers(self, ends: list[Value], span: Span = Span.ARRAY) -> None:
        """Compute the numbers of the array, or of another span, that `ends` are made of, here."""
        for value in below(ends, known=list(self._names)):
            if value.span is span:
                self.number(value)

    def draw(self, ends: list[Value]) -> None:
        """Draw the random words of `ends` here, if they are made of such."""
        if not self._filled and any(value.op == "random16" for value in below(ends)):
            self.put(*self.filled())
            self._filled = self.uses_random = True

    def into(self, end: Value, store: Store) -> None:
        """Store a value of every coordinate."""
        if not branches(end):
            self.stored(end, store)
            return
        condition, yes, no = end.args
        self.put(self.opening.format(self.number(condition)))
        with self.block():
            self.into(yes, store)
        self.put(self.otherwise)
        with self.block():
            self.into(no, store)
        self.put(self.closing)

    def run(self, ends: list[Value], then: Then) -> None:
        """A loop, after the values that it needs."""
        self.prepare(ends)
        random = any(value.op == "random16" for value in self.inside(ends))
        if random and not self._filled:
            self.put(*self.filled())
            self._filled = self.uses_random = True
        if not self._tossed and any(value.op == "coin" for value in self.inside(ends)):
            self.put(*self.tossed())
            self._tossed = self.uses_coins = True
        self.loop(ends, then, random)

    def room(self, value: Value) -> str:
        """The name of an array that holds `value`, filled here unless it was."""
        if value not in self._names:
            name = f"room{len(self.rooms)}"
            self.rooms.append((name, value.kind))
            self.into(value, Store(self.kept_in(name)))
            self._names[value] = name
        return self._names[value]

    @abstractmethod
    def kept_in(self, room: str) -> str:
        """The form of a store into a room."""

    def inside(self, ends: list[Value]) -> list[Value]:
        """Values that a loop computes for `ends`: those of coordinates that are not stored."""
        return [value for value in below(ends, known=list(self._names)) if value.span is Span.COORDINATE]

    def named(self, ends: list[Value], leaf: Callable[[Value], str | None], at: str) -> list[str]:
        """Name all operands of `ends`, in a loop, and return the names of the ends. `leaf`: values that no operation makes."""
        names: dict[Value, str] = {}

        def name_of(value: Value) -> str:
            if value.op == "constant":
                return self.literal(value)
            if value in self._names:
                return f"{self._names[value]}[{at}]" if value.span is Span.COORDINATE else self._names[value]
            return names[value]

        for value in self.inside(ends):
            found = leaf(value) or self.expression(value, [self.lane(arg, name_of(arg)) for arg in value.args])
            names[value] = self.fresh()
            self.put(self.assigned(value, names[value], found))
        return [self.lane(end, name_of(end)) for end in ends]

    def lane(self, value: Value, name: str) -> str:
        """A number of a row, in a loop over coordinates."""
        return name

    def fresh(self) -> str:
        """A name that was not used."""
        self._count += 1
        return f"n{self._count}"

    def prepare(self, ends: list[Value]) -> None:
        """Numbers, and arrays for values that cannot be computed inside a loop."""
        ahead, seen = list(ends), set[Value]()
        while ahead:
            value = ahead.pop()
            if value in seen or value in self._names:
                continue
            seen.add(value)
            if value.span < Span.COORDINATE:
                self.number(value)
            elif branches(value):
                self.room(value)
            else:
                ahead.extend(value.args)


def branches(value: Value) -> bool:
    """True for a `where` of a row or the array between values of coordinates."""
    return value.op == "where" and value.span is Span.COORDINATE and value.args[0].span < Span.COORDINATE


def place_of(program: Program, column: Column, divided: str = "/") -> str:
    """The place of a column's number for the row `row`, among the numbers of an array. `divided`: how whole numbers are."""
    if any(column.name == other.name for other in program.of_array):
        return str([other.name for other in program.of_array].index(column.name))
    if column.name in (names := [other.name for other in program.of_buckets]):
        bucket, buckets = f"row / {program.packed.rows}", f"((rows + {program.packed.rows - 1}) / {program.packed.rows})"
        offset = names.index(column.name)
        return f"{len(program.of_array)} + {f'{offset} * {buckets} + ' if offset else ''}{bucket}".replace("/", divided)
    offset = [other.name for other in program.of_rows].index(column.name)
    return f"{len(program.of_array)} + {f'{offset} * rows + ' if offset else ''}row"
