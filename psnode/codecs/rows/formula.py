"""A codec's formula, and the program recorded from it.

The program consists of graphs of the values sent and of the decoded values.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

import numpy as np

from psnode.codecs.arrays import Bytes, Int32s, Words32
from psnode.codecs.rows.language import LARGEST, ROW, minimum, where
from psnode.codecs.rows.numpy_words import number
from psnode.codecs.rows.packings import Packed
from psnode.codecs.rows.values import Dtype, Span, Value, below, replaced
from psnode.errors import CodecError, CodecSpecError, in_one_line

_OF_ENCODE = ("input", "random16", "coin", "settle", "size_of_all", "size_of_bucket", "key_word", "parameter")
OF_ALL = ("largest_of_all", "least_of_all", "greatest_of_all", "least_magnitude_of_all")  # need a sweep before coding
PLACES = dict(zip(OF_ALL, (0, 1, 2, 4), strict=True))  # places among the numbers of the whole input (Program.of_input)
SIZE = 3  # a place among the same numbers
MOST_PARAMETERS, FIRST_PARAMETER = 4, 3  # the latter and FIRST_SUM: places among the same numbers, viewed as float64
FIRST_SUM = FIRST_PARAMETER + MOST_PARAMETERS
NORM = "l2_norm_of_all"
SUMS = ("sum_of_all", "count_of_all", NORM)  # need a sweep with a kernel generated from the formula
OF_BUCKET = ("l2_norm_of_bucket", "size_of_bucket")
OF_INPUT = (*OF_ALL, *SUMS, *OF_BUCKET, "size_of_all", "key_word", "parameter")


class Fields:
    """All data that encode sends: numbers of the array, of buckets or of rows, and one packing of codes.

    Example: `Fields(norms=norm, codes=planes(q, 4))`. Decode receives the fields under the same names. In the body, numbers of
    the array come first, then numbers of buckets and of rows, then the packing.
    """

    def __init__(self, **fields: Value | Packed) -> None:
        self.numbers: dict[str, Value] = {}
        for name, field in fields.items():
            if isinstance(field, Packed):
                continue
            if not isinstance(field, Value) or field.span is Span.COORDINATE or field.kind in (Dtype.F64, Dtype.BOOL):
                raise CodecSpecError(
                    f"the field {name} is neither a packing nor an f32, i32 or u32 of a row, a bucket or an array"
                )
            self.numbers[name] = field
        packings = [(name, field) for name, field in fields.items() if isinstance(field, Packed)]
        if len(packings) != 1:
            raise CodecSpecError(f"a body has one packing, such as codes=planes(q, 4), not {len(packings)}")
        [(self.name, self.packed)] = packings


class Formula(Protocol):
    """The two formulas of a codec, and the codec's number, which selects the stream of its random words."""

    @property
    def id(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def may_overflow(self) -> bool:
        """True if decoded values must be limited to the range of float32, because they might leave it."""

    def to_fields(self, v: Value) -> Fields:
        """Return the fields to send for a row `v` of float32."""

    @property
    def from_fields(self) -> Callable[..., Value]:
        """Return the function that decodes fields, passed by name, to a float32 for every coordinate."""


class Column(NamedTuple):
    """A named number in the body. `value` is the value that encode writes for it."""

    name: str
    value: Value


@dataclass(frozen=True)
class Program:
    """A formula as graphs of values.

    `of_array`, `of_buckets` and `of_rows` are the columns of the body. `decoded` is the decoded value, computed from symbols
    for the fields. `kept` is the same value, but computed from the values that encode has. In both graphs, the codes are a
    symbol. `width` is the number of bits of the packing, computed from symbols for the fields. It is None if this number is
    fixed, or if the packing is `fitted`.
    """

    id: str
    stream: int
    of_array: tuple[Column, ...]
    of_rows: tuple[Column, ...]
    packed: Packed
    decoded: Value
    kept: Value
    width: Value | None = None
    of_buckets: tuple[Column, ...] = ()

    @property
    def numbers(self) -> tuple[Column, ...]:
        """All columns, in the order of the body."""
        return (*self.of_array, *self.of_buckets, *self.of_rows)

    @property
    def sweeps(self) -> bool:
        """True if encode must read the whole input once before it codes."""
        return bool(self.extremes)

    @cached_property
    def ends(self) -> list[Value]:
        """The values that encode computes: the numbers, the codes and `kept`."""
        return [*(column.value for column in self.numbers), self.packed.value, self.kept]

    @cached_property
    def extremes(self) -> set[str]:
        """The operations of OF_ALL that encode uses."""
        return {value.op for value in below(self.ends[:-1]) if value.op in OF_ALL}

    @cached_property
    def sums(self) -> tuple[Value, ...]:
        """The sums and counts over the whole input, in the order in which Program.of_input stores them, without repetitions."""
        return tuple(value for value in below(self.ends) if value.op in SUMS)

    @cached_property
    def parameters(self) -> tuple[Value, ...]:
        """The parameters that encode uses, in the order in which Program.of_input stores them, without repetitions."""
        return tuple(value for value in below(self.ends) if value.op == "parameter")

    @cached_property
    def sums_beside(self) -> bool:
        """True if a single sweep can code the rows and compute the sums.

        This requires that no code and no number of a row depends on a sum.
        """
        ends = [*(column.value for column in self.of_rows), self.packed.value]
        if not self.sums or self.sweeps or self.packed.rows > 1 or self.packed.in_blocks or self.width is not None:
            return False
        return all(value.op != NORM for value in self.sums) and not any(value.op in SUMS for value in below(ends))

    def of_input(self, size: int) -> Int32s:
        """Return the initial numbers of an input of `size` coordinates, as int32. Sweeps over the input then update them.

        Layout: [0] bits of the largest magnitude; [1] and [2] the least and the greatest value, as integers in the same order;
        [3] the size; [4] bits of the least nonzero magnitude, minus 1 (0x7FFFFFFF if there is no such value); [5] unused. Then
        follow, as float64, the parameters (MOST_PARAMETERS numbers) and the sums.
        """
        found = self._unknown.copy()
        found[SIZE] = size
        return found

    @cached_property
    def _unknown(self) -> Int32s:
        found = np.zeros(2 * (FIRST_SUM + len(self.sums)), np.int32)
        found[: SIZE + 2] = 0, 0x7FFFFFFF, -0x80000000, 0, 0x7FFFFFFF
        for place, value in enumerate(self.parameters, FIRST_PARAMETER):
            found.view(np.float64)[place] = np.array(value.detail, value.kind.value)
        return found

    def place_of(self, value: Value) -> int:
        """Return the index of a sum or a parameter in the array of `of_input`, viewed as float64."""
        first, values = (FIRST_PARAMETER, self.parameters) if value.op == "parameter" else (FIRST_SUM, self.sums)
        return first + next(place for place, each in enumerate(values) if each is value)

    @cached_property
    def with_fields(self) -> list[Value]:
        """The codes and `kept`, with the numbers of buckets replaced by symbols.

        When codes are written, these numbers are already in the body.
        """
        symbols = {value: Value("field", value.kind, span=Span.BUCKET, detail=name) for name, value in self.of_buckets}
        return [replaced(end, symbols) for end in (self.packed.value, self.kept)]

    def columns(self, side: Words32, rows: int) -> Iterator[tuple[str, Words32]]:
        """Yield the name of each column of type float32, and the bits of its numbers in `side`, for an input of `rows` rows."""
        ends = [1] * len(self.of_array) + [self.units(rows)] * len(self.of_buckets) + [rows] * len(self.of_rows)
        at = 0
        for column, count in zip(self.numbers, ends, strict=True):
            if column.value.kind is Dtype.F32:
                yield column.name, side[at : at + count]
            at += count

    def constants(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, index and bits of each number of the array that is a constant or a parameter.

        A body is decoded only if it holds these bits.
        """
        for at, (name, value) in enumerate(self.of_array):
            if value.op in ("constant", "parameter"):
                yield name, at, int(np.array(value.detail, value.kind.value).view(np.uint32))

    @cached_property
    def place_of_key(self) -> int | None:
        """The index of the first of the four key words among the numbers of the array.

        It is None unless the words are sent in order and without a gap.
        """
        return _place_of_key([value for _, value in self.of_array])

    def side_words(self, size: int) -> int:
        """Return the number of 32-bit words before the codes of `size` coordinates.

        These words hold the numbers, and the widths of `fitted` codes.
        """
        return self.place_of_widths(size) + -(-self._widths(size) // 4)

    def place_of_widths(self, size: int) -> int:
        """Return the number of 32-bit words that precede the widths of buckets."""
        rows = rows_of(size)
        return len(self.of_array) + len(self.of_buckets) * self.units(rows) + len(self.of_rows) * rows

    def units(self, rows: int) -> int:
        """Return the number of units in `rows` rows.

        A unit consists of the rows that are packed together; the last may be incomplete.
        """
        return -(-rows // self.packed.rows)

    def _widths(self, size: int) -> int:
        return self.units(rows_of(size)) if self.packed.form == "fitted" else 0

    def padding(self, side: Words32, size: int) -> Bytes:
        """Return the bytes between the last width and the codes, which must be 0."""
        return side.view(np.uint8)[4 * self.place_of_widths(size) + self._widths(size) :]

    def packing(self, side: Words32, size: int) -> Packed:
        """Return the packing of `size` coordinates, with the width or the widths that the numbers in `side` determine."""
        if self.packed.form == "fitted":
            start = 4 * self.place_of_widths(size)
            return self.packed._replace(widths=side.view(np.uint8)[start : start + self._widths(size)])
        if self.width is None:
            return self.packed
        return self.packed._replace(bits=self._width_of(side[: len(self.of_array)].tobytes()), width=None)

    @cached_property
    def _width_of(self) -> Callable[[bytes], int]:
        """Function that computes the width from the bytes of the array's numbers. It caches the last 64 results."""

        @lru_cache(maxsize=64)
        def found(side: bytes) -> int:
            assert self.width is not None
            words = {column.name: np.frombuffer(side, np.uint32)[at] for at, column in enumerate(self.of_array)}
            fields = [value for value in below([self.width]) if value.op == "field"]
            return int(number(self.width, {value: words[str(value.detail)].view(value.kind.value) for value in fields}))

        return found

    def nbytes(self, size: int) -> int:
        """Return the number of bytes of a body of `size` coordinates.

        If the packing has a variable length, it is the largest number.
        """
        return 4 * self.side_words(size) + self.packed.nbytes(size)

    def length(self, body: Bytes, size: int) -> int:
        """Return the length in bytes of the body of `size` coordinates at the start of `body`."""
        start = 4 * self.side_words(size)
        return start + self.packing(body[:start].view(np.uint32), size).length(body[start:], size)


def rows_of(size: int) -> int:
    """Return the number of rows of `size` coordinates. The last row may be incomplete."""
    return -(-size // ROW)


def program_of(formula: Formula) -> Program:
    """Return the program of `formula`, recorded by evaluating both formulas once, on symbols.

    Raise CodecSpecError if the parts do not fit together.
    """
    v = Value("input", Dtype.F32, span=Span.COORDINATE)
    fields = _run(formula, formula.to_fields, {"v": v})
    if not isinstance(fields, Fields):
        raise CodecSpecError(f"{formula.id}: to_fields is to return Fields, not {type(fields).__name__}")
    codes = Value("codes", fields.packed.value.kind, span=Span.COORDINATE)
    symbols = {name: Value("field", value.kind, span=_column_span(value), detail=name) for name, value in fields.numbers.items()}
    columns = [Column(name, value) for name, value in fields.numbers.items()]
    together = fields.packed.rows > 1 or fields.packed.in_blocks
    if together and any(value.span is Span.ROW for value in fields.numbers.values()):
        raise CodecSpecError(f"{formula.id}: a number of the row cannot go with {fields.packed.form}, which are of several rows")
    program = Program(
        formula.id,
        formula.number,
        tuple(column for column in columns if _column_span(column.value) is Span.ARRAY),
        tuple(column for column in columns if _column_span(column.value) is Span.ROW),
        fields.packed,
        _decoded(formula, {**symbols, fields.name: codes}, fields),
        _decoded(formula, {**fields.numbers, fields.name: codes}, fields),
        _width(formula, fields, symbols),
        tuple(column for column in columns if _column_span(column.value) is Span.BUCKET),
    )
    _check_buckets(program)
    if len(program.parameters) > MOST_PARAMETERS:
        raise CodecSpecError(f"{formula.id}: a formula has at most {MOST_PARAMETERS} parameters, not {len(program.parameters)}")
    if any(each.op in SUMS for value in program.sums for each in below(value.args)):
        raise CodecSpecError(f"{formula.id}: a sum over the whole input cannot be made of another one")
    return program


def _width(formula: Formula, fields: Fields, symbols: dict[str, Value]) -> Value | None:
    """Return the width of the packing, computed from symbols for the fields, or None if the width is fixed."""
    if fields.packed.width is None:
        return None
    width = replaced(fields.packed.width, {value: symbols[name] for name, value in fields.numbers.items()})
    if any(value.op in _OF_ENCODE for value in below([width])):
        raise CodecSpecError(f"{formula.id}: the width of planes is to be made of numbers that are sent")
    return width


def _check_buckets(program: Program) -> None:
    """Raise CodecSpecError unless kernels can compute the numbers of buckets.

    Numbers of buckets require codes that are fitted to buckets of the same number of rows.
    """
    found = [value for value in below(program.ends) if value.op in OF_BUCKET]
    if any(program.packed.form != "fitted" or value.detail != program.packed.bucket for value in found):
        raise CodecSpecError(f"{program.id}: numbers of a bucket go with codes that are fitted to buckets of as many rows")
    if any(each.op in OF_BUCKET for value in program.sums for each in below(value.args)):
        raise CodecSpecError(f"{program.id}: a sum over the whole input cannot be made of numbers of buckets")
    if any(value.op == "l2_norm_of_bucket" for value in below(program.with_fields)):
        raise CodecSpecError(f"{program.id}: codes know of a bucket's norm what is sent of it alone")


def _column_span(value: Value) -> Span:
    return value.span if value.span in (Span.ROW, Span.BUCKET) else Span.ARRAY


def _place_of_key(numbers: Sequence[Value]) -> int | None:
    """Return the index of the first of the four key words in `numbers`, or None unless they are sent in order, without a gap."""
    words = [value.detail if value.op == "key_word" else None for value in numbers]
    return next((at for at in range(len(words) - 3) if words[at : at + 4] == [0, 1, 2, 3]), None)


def _decoded(formula: Formula, arguments: dict[str, Value], fields: Fields) -> Value:
    value = _run(formula, formula.from_fields, arguments)
    if not isinstance(value, Value) or value.kind is not Dtype.F32:
        raise CodecSpecError(f"{formula.id}: from_fields is to return an f32, not {value!r}")
    of_array = [number for number in fields.numbers.values() if _column_span(number) is Span.ARRAY]
    known = ("random16",) if _place_of_key(of_array) is not None else ()
    if any(each.op in _OF_ENCODE and each.op not in known for each in below([value], known=list(arguments.values()))):
        raise CodecSpecError(
            f"{formula.id}: from_fields knows the fields alone, neither the input nor random bits nor parameters"
        )
    return where(value >= -LARGEST, minimum(value, LARGEST), -LARGEST) if formula.may_overflow else value


def _run(formula: Formula, function: Callable[..., Any], arguments: dict[str, Value]) -> Any:
    wanted = set(inspect.signature(function).parameters)
    if len(wanted) != len(arguments) or (function.__name__ == "from_fields" and wanted != set(arguments)):
        raise CodecSpecError(
            f"{formula.id}: {function.__name__} is to take {', '.join(arguments)}, not {', '.join(sorted(wanted))}"
        )
    try:
        return function(**arguments) if function.__name__ == "from_fields" else function(*arguments.values())
    except CodecError:
        raise
    except Exception as error:  # a user's formula may raise any exception
        raise CodecSpecError(f"{formula.id}: {function.__name__} failed: {in_one_line(error)}") from error
