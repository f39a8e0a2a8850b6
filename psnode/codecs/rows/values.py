"""The values of a formula. Each is an operation with its operands, recorded by Python's operators without computing it.

A value has a kind, which is the type of its numbers, and a span, which is the set of coordinates that share one of its numbers.
These are the coordinates of all arrays (for a constant), of one array, of a bucket of rows, or of a row of 512, or a single
coordinate. Python numbers take the kind of the other operand. There is no implicit conversion between kinds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum, IntEnum
from typing import NoReturn, TypeAlias

from psnode.errors import CodecSpecError


class Dtype(Enum):
    """The kind of a value, that is, the type of its numbers."""

    F32 = "float32"
    F64 = "float64"
    I32 = "int32"
    U32 = "uint32"
    BOOL = "bool"

    @property
    def real(self) -> bool:
        """True for floating-point numbers."""
        return self in (Dtype.F32, Dtype.F64)

    @property
    def whole(self) -> bool:
        """True for integers of 32 bits, whose arithmetic is modulo 2^32."""
        return self in (Dtype.I32, Dtype.U32)


class Span(IntEnum):
    """The set of coordinates that share one number of a value. Members are listed from the largest set to a single coordinate."""

    CONSTANT = 0
    ARRAY = 1
    BUCKET = 2
    ROW = 3
    COORDINATE = 4


Number: TypeAlias = int | float | bool
_LIMITS = {Dtype.I32: (-(2**31), 2**31 - 1), Dtype.U32: (0, 2**32 - 1)}


class Value:
    """A node of a formula's graph: the operation `op` on `args`.

    `detail` holds the number of a constant, the name of a field, or another parameter of the operation.
    """

    __slots__ = ("args", "detail", "kind", "op", "span")

    def __init__(self, op: str, kind: Dtype, args: Sequence[Value] = (), span: Span | None = None, detail: object = None) -> None:
        self.op, self.kind, self.args, self.detail = op, kind, tuple(args), detail
        self.span: Span = max((arg.span for arg in args), default=Span.CONSTANT) if span is None else span

    def __add__(self, other: Value | Number) -> Value:
        return _arithmetic("add", self, other)

    def __radd__(self, other: Number) -> Value:
        return _arithmetic("add", _alike(other, self), self)

    def __sub__(self, other: Value | Number) -> Value:
        return _arithmetic("sub", self, other)

    def __rsub__(self, other: Number) -> Value:
        return _arithmetic("sub", _alike(other, self), self)

    def __mul__(self, other: Value | Number) -> Value:
        return _arithmetic("mul", self, other)

    def __rmul__(self, other: Number) -> Value:
        return _arithmetic("mul", _alike(other, self), self)

    def __truediv__(self, other: Value | Number) -> Value:
        return _real("div", self, other)

    def __rtruediv__(self, other: Number) -> Value:
        return _real("div", _alike(other, self), self)

    def __neg__(self) -> Value:
        return self._unary("neg", self.kind is not Dtype.BOOL)

    def __abs__(self) -> Value:
        return self._unary("abs", self.kind.real)

    def __invert__(self) -> Value:
        return self._unary("not", not self.kind.real)

    def __and__(self, other: Value | Number) -> Value:
        return _bitwise("and", self, other)

    def __or__(self, other: Value | Number) -> Value:
        return _bitwise("or", self, other)

    def __xor__(self, other: Value | Number) -> Value:
        return _bitwise("xor", self, other)

    def __lshift__(self, other: Value | int) -> Value:
        return _shift("shl", self, other)

    def __rshift__(self, other: Value | int) -> Value:
        return _shift("shr", self, other)

    def __lt__(self, other: Value | Number) -> Value:
        return _compare("lt", self, other)

    def __le__(self, other: Value | Number) -> Value:
        return _compare("le", self, other)

    def __gt__(self, other: Value | Number) -> Value:
        return _compare("gt", self, other)

    def __ge__(self, other: Value | Number) -> Value:
        return _compare("ge", self, other)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        return _compare("ne", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> NoReturn:
        raise CodecSpecError("a formula's values are not known while it is written down: use where() in the place of if")

    def __repr__(self) -> str:
        return f"<{self.op} {self.kind.value} of {self.span.name.lower()}>"

    def _unary(self, op: str, allowed: bool) -> Value:
        if not allowed:
            raise CodecSpecError(f"{op} does not take {self.kind.value}")
        return Value(op, self.kind, (self,))


def constant(number: Number, kind: Dtype) -> Value:
    """Return `number` as a constant of the given kind. Raise CodecSpecError if it is not finite or outside the kind's range."""
    if kind in _LIMITS:
        low, high = _LIMITS[kind]
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise CodecSpecError(f"{number!r} is no {kind.value}")
    elif kind is Dtype.BOOL:
        if not isinstance(number, bool):
            raise CodecSpecError(f"{number!r} is not true or false")
    elif isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise CodecSpecError(f"{number!r} is no {kind.value}")
    return Value("constant", kind, span=Span.CONSTANT, detail=number)


def pair(a: Value | Number, b: object) -> tuple[Value, Value]:
    """Return `a` and `b` as values of one kind. A Python number takes the kind of the other.

    Raise CodecSpecError if kinds differ.
    """
    if isinstance(a, Value) and isinstance(b, Value):
        if a.kind is not b.kind:
            raise CodecSpecError(f"{a.kind.value} and {b.kind.value} do not mix: convert one of them, as in f32(x)")
        return a, b
    if isinstance(a, Value):
        return a, _alike(b, a)
    if isinstance(b, Value):
        return _alike(a, b), b
    raise CodecSpecError(f"{a!r} and {b!r} are plain numbers: one of them has to be a value of the formula")


def _alike(number: object, value: Value) -> Value:
    if not isinstance(number, int | float):
        raise CodecSpecError(f"a formula takes values and numbers, not {type(number).__name__}")
    return constant(number, value.kind)


def _arithmetic(op: str, a: Value, b: Value | Number) -> Value:
    a, b = pair(a, b)
    if a.kind is Dtype.BOOL:
        raise CodecSpecError(f"{op} does not take bool")
    return Value(op, a.kind, (a, b))


def _real(op: str, a: Value, b: Value | Number) -> Value:
    a, b = pair(a, b)
    if not a.kind.real:
        raise CodecSpecError(f"{op} does not take {a.kind.value}: convert to f32 or shift")
    return Value(op, a.kind, (a, b))


def _bitwise(op: str, a: Value, b: Value | Number) -> Value:
    a, b = pair(a, b)
    if a.kind.real:
        raise CodecSpecError(f"{op} does not take {a.kind.value}: take bits(x)")
    return Value(op, a.kind, (a, b))


def _shift(op: str, a: Value, b: Value | int) -> Value:
    a, b = pair(a, b)
    if not a.kind.whole:
        raise CodecSpecError(f"{op} does not take {a.kind.value}")
    if b.op != "constant" or not isinstance(b.detail, int) or not 0 <= b.detail < 32:
        raise CodecSpecError("a shift is by a plain number from 0 to 31")
    return Value(op, a.kind, (a, b))


def _compare(op: str, a: Value, b: object) -> Value:
    a, b = pair(a, b)
    if a.kind is Dtype.BOOL:
        raise CodecSpecError("true and false are not compared: use &, | and ^")
    return Value(op, Dtype.BOOL, (a, b))


def replaced(end: Value, instead: Mapping[Value, Value]) -> Value:
    """Return a copy of `end` in which each value that is a key of `instead` is replaced by its entry."""
    made = dict(instead)
    for value in below([end], known=list(instead)):
        args = [made[arg] for arg in value.args]
        made[value] = Value(value.op, value.kind, args, value.span, value.detail) if args else value
    return made[end]


def below(ends: Sequence[Value], known: Sequence[Value] = ()) -> Iterator[Value]:
    """Yield all operands of `ends`, at any depth, and the ends themselves. Each is yielded once, after its own operands.

    Values in `known` are skipped, and so are operands on which only these values depend.
    """
    seen = set(known)
    for end in ends:
        ahead = [(end, False)]
        while ahead:
            value, ready = ahead.pop()
            if ready:
                yield value
            elif value not in seen:
                seen.add(value)
                ahead.append((value, True))
                ahead.extend((arg, False) for arg in reversed(value.args))
