"""Sources: where the values come from that a codec turns into bytes.

    Values(x)                  x
    Accumulated(parts, target) target += parts; target is coded
    Copied(x, target)          target = x; target is coded
    Difference(x, y)           x - y

A source has a shape, and its values are made once. A codec that adds, copies or subtracts in the sweep that codes takes a
source apart; every other one asks for its `array`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np

from psnode.codecs.arrays import Floats, Parts, Shape, check_parts, check_target, in_c_order, readonly
from psnode.codecs.sinks import Sink, Subtracted
from psnode.errors import CodecValueError, NonFinitePartError

if TYPE_CHECKING:
    from psnode.codecs.kernels.parts import PartTable

NO_FLOATS = np.empty(0, np.float32)
_DOUBT = 2.0**-22  # the two operations err by less than half of that


class Source(ABC):
    """An array of `shape` that is to be coded."""

    shape: Shape

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @abstractmethod
    def array(self) -> Floats:
        """The values in `shape`, contiguous and read-only, made now if they do not lie there yet. NonFinitePartError."""

    def made(self) -> Source:
        """The source of the same values once they lie in memory."""
        return Values(self.array())

    def table(self) -> PartTable:
        """The parts that are still to be added to the memory of the values, for a kernel that adds them; none otherwise."""
        from psnode.codecs.kernels.parts import NO_PARTS

        return NO_PARTS

    def refuse(self, reached: int = 0, decoded: Floats = NO_FLOATS) -> NoReturn:
        """Raise NonFiniteGradientError for the first value that is not finite, of which there is one."""
        from psnode.codecs.kernels.finite import raise_nonfinite

        raise_nonfinite(self.array())
        raise AssertionError("all values are finite")


class Values(Source):
    """`x` (float32) as it is."""

    def __init__(self, x: Floats) -> None:
        self._x = readonly(in_c_order(x, "x"))
        self.shape = self._x.shape

    def array(self) -> Floats:
        return self._x

    def made(self) -> Source:
        return self


class Accumulated(Source):
    """target += the array that lies in `parts`, flat float32 in ascending order, zero where none lies; then target is coded.

    `target`: float32, contiguous, apart from the parts. A part that is not finite raises NonFinitePartError, with the index in
    the array; the target is then as it was, but for rounding. Raises CodecTypeError, CodecValueError for other arguments.
    `is_added`: whether the parts have been added, or taken by a caller that adds them.
    """

    def __init__(self, parts: Parts, target: Floats) -> None:
        check_target(target, "the target of a source")
        check_parts(parts, target.size)
        self.parts, self.target = parts, target
        self.shape = target.shape
        self.is_added = not parts

    def take(self) -> Parts:
        """The parts that are still to be added; the caller adds them."""
        parts = () if self.is_added else self.parts
        self.is_added = True
        return parts

    def table(self) -> PartTable:
        from psnode.codecs.kernels.parts import table_of

        return table_of(self.take(), self.target.reshape(-1))

    def array(self) -> Floats:
        if not self.is_added:
            from psnode.codecs.kernels.parts import NOT_FINITE, add_parts, reached

            table = self.table()
            if add_parts(table, 0, 0, self.size) == NOT_FINITE:
                self.refuse(reached(table))
        return readonly(self.target)

    def made(self) -> Source:
        self.array()
        return Accumulated((), self.target)

    def refuse(self, reached: int = 0, decoded: Floats = NO_FLOATS) -> NoReturn:
        """Raise NonFinitePartError; before, undo additions up to coordinate `reached`, and the subtraction of `decoded`.

        `decoded` (flat) belongs to the first coordinates. If all parts are finite, the sum is not: NonFiniteGradientError, and
        the target is left as the sweep had made it by then.
        """
        from psnode.codecs.kernels.finite import all_finite, raise_nonfinite

        for place, part in self.parts:
            if not all_finite(readonly(part)):
                restore(self.target.reshape(-1), self.parts, reached, decoded)
                raise_nonfinite(part, place, NonFinitePartError)
        super().refuse()


def restore(target: Floats, parts: Parts, stop: int, decoded: Floats) -> None:
    """Restore flat `target` from before `parts` were added up to coordinate `stop`, and `decoded` subtracted at its start.

    But for rounding: values that may be nothing but rounding errors of the two operations become zero. So nothing of a huge
    gradient is left, and no value is more than twice as large as before.
    """
    size = max(stop, decoded.size)
    values, moved = target[:size].astype(np.float64), np.zeros(size)
    values[: decoded.size] += decoded
    moved[: decoded.size] += np.abs(decoded)
    for place, part in parts:
        added = part[: max(0, stop - place)]
        values[place : place + added.size] -= added
        moved[place : place + added.size] += np.abs(added)
    values[np.abs(values) <= _DOUBT * moved] = 0
    target[:size] = values


class Copied(Source):
    """target = x, then target is coded. `target`: float32, contiguous, of the shape of x and apart from it."""

    def __init__(self, x: Floats, target: Floats) -> None:
        check_target(target, "the target of a source")
        self.x, self.target = readonly(in_c_order(x, "x")), target
        self.shape = self.x.shape
        _check_shapes(target, "the target", self.shape)

    def array(self) -> Floats:
        np.copyto(self.target, self.x)
        return readonly(self.target)

    def made(self) -> Source:
        self.array()
        return Accumulated((), self.target)


class Difference(Source):
    """x - y, which is made as a whole only for a codec that needs it so.

    Both float32, contiguous and of one shape. `scratch` (float32, flat, as long as x or longer) saves an allocation then.
    """

    def __init__(self, x: Floats, y: Floats, scratch: Floats | None = None) -> None:
        self.x, self.y = readonly(in_c_order(x, "x")), readonly(in_c_order(y, "y"))
        self.shape = self.x.shape
        _check_shapes(self.y, "y", self.shape)
        self._scratch = scratch

    def array(self) -> Floats:
        room = np.empty(self.size, np.float32) if self._scratch is None else self._scratch[: self.size]
        return readonly(np.subtract(self.x, self.y, out=room.reshape(self.shape)))


class Operands(NamedTuple):
    """Arrays that a kernel reads and writes: `x` and `error`, flat; the latter is empty if x - decoded is not wanted."""

    x: Floats
    error: Floats

    @property
    def apart(self) -> bool:
        """True if the error is wanted, and not over x."""
        return self.error.size > 0 and self.error.ctypes.data != self.x.ctypes.data


def leaves_error(source: Source, sink: Sink) -> bool:
    """True if x - decoded is to lie in the target of `source` afterwards."""
    if not isinstance(sink, Subtracted) or not isinstance(source, (Accumulated, Copied)):
        return False
    return sink.target is source.target or sink.target.ctypes.data == source.target.ctypes.data


def operands(source: Source, sink: Sink) -> Operands:
    """The operands of a kernel that writes x - decoded to memory of its own or over x."""
    if not leaves_error(source, sink):
        return Operands(source.array().reshape(-1), NO_FLOATS)
    assert isinstance(source, (Accumulated, Copied))
    x = source.x if isinstance(source, Copied) else source.array()
    return Operands(x.reshape(-1), source.target.reshape(-1))


def _check_shapes(array: Floats, name: str, shape: Shape) -> None:
    if array.shape != shape:
        raise CodecValueError(f"{name} has shape {array.shape}, x has {shape}: they must be equal")
