"""Writer of a kernel's statements for one row: numbers, loops over 512 coordinates, and conditions around such loops.

The generators for Numba and CUDA derive from the class Statements. The operands of a value are computed in the loop that stores
the value. Two sorts of operands are computed before that loop: numbers of the row, and values that are needed as a whole array.
The latter are stored in an array of 512.
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
    """The statement that stores a value {x} at index {at}, and a second statement, `beside`, which depends only on the index."""

    form: str
    beside: str = ""

    def lines(self, at: str, x: str) -> list[str]:
        """Return both statements for the index `at` and the value `x`."""
        return [self.form.format(at=at, x=x), self.beside.format(at=at)]


class Statements(ABC):
    """Writer of statements for one program. The argument `ends` of its methods lists the values to compute or store.

    `rooms` lists the arrays of 512 that the statements need. `uses_random` and `uses_coins` are True if the statements draw
    random words or coins.
    """

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
        """Return the text of a constant."""

    @abstractmethod
    def reduced(self, value: Value) -> str:
        """Return the expression of a number that is not computed from other numbers.

        Such a number is a reduction over a row, a bucket or the whole input, a size, a parameter, or a word of the key.
        """

    @abstractmethod
    def assigned(self, value: Value, name: str, expression: str) -> str:
        """Return the statement that assigns `expression` to `name`."""

    @abstractmethod
    def filled(self) -> list[str]:
        """Return the statements that draw a row's random words."""

    @abstractmethod
    def tossed(self) -> list[str]:
        """Return the statements that draw a row's coins."""

    @abstractmethod
    def loop(self, ends: list[Value], then: Then, random: bool) -> None:
        """Append a loop over the row that computes `ends`.

        `then` returns the last statements of the loop, given an index and the names of the ends.
        """

    @abstractmethod
    def stored(self, end: Value, store: Store) -> None:
        """Append the statements that store `end` for every coordinate. `end` must not be a branch (see `branches`)."""

    def put(self, *lines: str) -> None:
        """Append the non-empty `lines` at the current indentation."""
        self._lines += ["    " * self.indent + line for line in lines if line]

    def taken(self) -> list[str]:
        """Return the lines appended since the last call, and remove them from the writer."""
        lines, self._lines = self._lines, []
        return lines

    @contextmanager
    def block(self) -> Iterator[None]:
        """Indent the statements of a `with` block. Values computed in the block are computed again if needed after it."""
        kept = dict(self._names), self._filled, self._tossed
        self.indent += 1
        yield
        self.indent -= 1
        self._names, self._filled, self._tossed = kept

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """Put the statements of a `with` block under a condition."""
        self.put(self.opening.format(condition))
        with self.block():
            yield
        self.put(self.closing)

    def define(self, value: Value, expression: str) -> str:
        """Append the assignment of `expression` to a new name for `value`. Return the name."""
        name = self._names[value] = self.fresh()
        self.put(self.assigned(value, name, expression))
        return name

    def number(self, end: Value) -> str:
        """Return the name of a number of a row or of the array, or the text of a constant.

        If the number has no name yet, its computation is appended first.
        """
        if end.op == "constant":
            return self.literal(end)
        if end not in self._names:
            self.define(end, self.reduced(end) if is_leaf(end) else self.computed(end))
        return self._names[end]

    @abstractmethod
    def computed(self, end: Value) -> str:
        """Append the statements that a number computed from other numbers needs, and return its expression."""

    def numbers(self, ends: list[Value], span: Span = Span.ARRAY) -> None:
        """Append the computation of all numbers with the span `span` on which `ends` depend."""
        for value in below(ends, known=list(self._names)):
            if value.span is span:
                self.number(value)

    def draw(self, ends: list[Value]) -> None:
        """Append the statements that draw a row's random words, if `ends` depend on them and they have not been drawn yet."""
        if not self._filled and any(value.op == "random16" for value in below(ends)):
            self.put(*self.filled())
            self._filled = self.uses_random = True

    def into(self, end: Value, store: Store) -> None:
        """Append the statements that store `end` for every coordinate. The loops of a branch are put under if and else."""
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
        """Append the statements that compute the values that `ends` need, and then a loop that computes `ends`."""
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
        """Return the name of an array that holds `value`.

        If it has not been filled before, statements that fill it are appended.
        """
        if value not in self._names:
            name = f"room{len(self.rooms)}"
            self.rooms.append((name, value.kind))
            self.into(value, Store(self.kept_in(name)))
            self._names[value] = name
        return self._names[value]

    @abstractmethod
    def kept_in(self, room: str) -> str:
        """Return the text that stores {x} at index {at} of the array `room`."""

    def inside(self, ends: list[Value]) -> list[Value]:
        """Return the values that a loop must compute for `ends`: values of coordinates that are not stored in an array."""
        return [value for value in below(ends, known=list(self._names)) if value.span is Span.COORDINATE]

    @abstractmethod
    def named(self, ends: list[Value], leaf: Callable[[Value], str | None], at: str) -> list[str]:
        """Append the computation of `ends` at index `at` of a loop, and return the names of the ends.

        `leaf` returns the expression of a value that is not the result of an operation, and None for other values.
        """

    def known(self, value: Value, at: str) -> str | None:
        """Return the expression of `value` at index `at` of a loop, or None if the value has no name."""
        if value not in self._names:
            return None
        return f"{self._names[value]}[{at}]" if value.span is Span.COORDINATE else self._names[value]

    def fresh(self) -> str:
        """Return a name that has not been used before."""
        self._count += 1
        return f"n{self._count}"

    def prepare(self, ends: list[Value]) -> None:
        """Append the computation of all values that a loop cannot compute: numbers, and arrays for values that branch."""
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


def is_leaf(value: Value) -> bool:
    """Return True for a number that is not computed from other numbers. Statements.reduced returns its expression."""
    return value.op in OF_INPUT or bool(value.args and value.args[0].span is Span.COORDINATE)


def branches(value: Value) -> bool:
    """Return True for a `where` between values of coordinates if its condition is a number of the row or of the array."""
    return value.op == "where" and value.span is Span.COORDINATE and value.args[0].span < Span.COORDINATE


def place_of(program: Program, column: Column, divided: str = "/") -> str:
    """Return the index, as an expression, of the number of `column` for the row `row` among the numbers of the body.

    `divided` is the operator of integer division.
    """
    if any(column.name == other.name for other in program.of_array):
        return str([other.name for other in program.of_array].index(column.name))
    if column.name in (names := [other.name for other in program.of_buckets]):
        bucket, buckets = f"row / {program.packed.rows}", f"((rows + {program.packed.rows - 1}) / {program.packed.rows})"
        offset = names.index(column.name)
        return f"{len(program.of_array)} + {f'{offset} * {buckets} + ' if offset else ''}{bucket}".replace("/", divided)
    offset = [other.name for other in program.of_rows].index(column.name)
    return f"{len(program.of_array)} + {f'{offset} * rows + ' if offset else ''}row"
