"""Sources: arrays for a codec to encode, some of which are computed only while they are encoded.

    Values(x)                  encodes x
    Accumulated(parts, target) adds parts to target, encodes target
    Copied(x, target)          copies x to target, encodes target
    Difference(x, y)           encodes x - y

Encoding computes the values of a source once. A codec that can add, copy or subtract in its encoding sweep reads the operands
of the source. Every other codec calls `array`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Floats, Parts, Shape, as_floats, check_parts, check_target, in_c_order, readonly
from psnode.codecs.sinks import Sink, Subtracted
from psnode.errors import CodecValueError, NonFinitePartError

if TYPE_CHECKING:
    from psnode.codecs.kernels.parts import PartTable

NO_FLOATS = np.empty(0, np.float32)
_DOUBT = 2.0**-22  # a relative error; the rounding errors of the addition and the subtraction are less than half of it


class Source(ABC):
    """An array of shape `shape` to be encoded."""

    shape: Shape

    @property
    def size(self) -> int:
        """The number of values."""
        return math.prod(self.shape)

    @abstractmethod
    def array(self) -> Floats:
        """Return the values, contiguous and read-only. They are computed first if necessary. Raises NonFinitePartError."""

    def made(self) -> Source:
        """Compute the values and return a source that holds them in memory."""
        return Values(self.array())

    def table(self) -> PartTable:
        """Return the table of the parts that a kernel must still add to the values. It is empty if there are no such parts."""
        from psnode.codecs.kernels.parts import NO_PARTS

        return NO_PARTS

    def refuse(self, reached: int = 0, decoded: Floats = NO_FLOATS) -> NoReturn:
        """Raise NonFiniteGradientError for the first value that is not finite.

        The caller must know that there is such a value.
        """
        from psnode.codecs.kernels.finite import raise_nonfinite

        raise_nonfinite(self.array())
        raise AssertionError("all values are finite")


class Values(Source):
    """The source of an existing array `x`, which `as_floats` converts unless it is float32."""

    def __init__(self, x: npt.ArrayLike) -> None:
        self._x = readonly(as_floats(x, "x"))
        self.shape = self._x.shape

    def array(self) -> Floats:
        return self._x

    def made(self) -> Source:
        return self


class Accumulated(Source):
    """The source of `target` after `parts` are added to it.

    `parts`: flat float32 pieces with ascending start indices, without overlap. `target`: float32, contiguous, sharing no memory
    with the parts. If a part has a value that is not finite, NonFinitePartError states its index in the array, and the target
    is restored up to rounding. Invalid arguments raise CodecTypeError or CodecValueError. `is_added` is True once the parts
    have been added, or taken by a caller that adds them.
    """

    def __init__(self, parts: Parts, target: Floats) -> None:
        check_target(target, "the target of a source")
        check_parts(parts, target.size)
        self.parts, self.target = parts, target
        self.shape = target.shape
        self.is_added = not parts

    def take(self) -> Parts:
        """Return the parts that have not been added yet. The caller must add them."""
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
        """Restore the target, then raise NonFinitePartError for the first part that is not finite.

        When this method is called, parts have been added to the coordinates below `reached`, and `decoded` (flat) has been
        subtracted from the first coordinates. Both operations are undone if a part is not finite. If all parts are finite,
        the target or its sum with a part is not. NonFiniteGradientError is then raised, and the target is not restored.
        """
        from psnode.codecs.kernels.finite import all_finite, raise_nonfinite

        for place, part in self.parts:
            if not all_finite(readonly(part)):
                restore(self.target.reshape(-1), self.parts, reached, decoded)
                raise_nonfinite(part, place, NonFinitePartError)
        super().refuse()


def restore(target: Floats, parts: Parts, stop: int, decoded: Floats) -> None:
    """Undo two changes of flat `target`: the addition of `parts` below `stop`, and the subtraction of `decoded` from its start.

    The result is exact up to rounding. Values that may consist only of rounding errors become zero. Therefore no trace of a
    huge gradient is left, and no value is more than twice as large as before.
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
    """The source of `target` after `x` is copied to it.

    `target`: float32, contiguous, of the shape of x, in memory that x does not share.
    """

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
    """The source of x - y. It is computed as an array only if the codec calls `array`.

    `x` and `y`: float32, of equal shape. `scratch` (float32, flat, at least as long as x): memory for this array, which saves
    an allocation.
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
    """Flat arrays of a kernel: `x`, which is read, and `error`, to which x - decoded is written unless `error` is empty."""

    x: Floats
    error: Floats

    @property
    def apart(self) -> bool:
        """True if x - decoded is written to memory other than that of x."""
        return self.error.size > 0 and self.error.ctypes.data != self.x.ctypes.data


def leaves_error(source: Source, sink: Sink) -> bool:
    """Return True if encoding must write x - decoded to the target of `source`."""
    if not isinstance(sink, Subtracted) or not isinstance(source, (Accumulated, Copied)):
        return False
    return sink.target is source.target or sink.target.ctypes.data == source.target.ctypes.data


def operands(source: Source, sink: Sink) -> Operands:
    """Return the operands for a kernel that can write x - decoded to the memory of x or to other memory."""
    if not leaves_error(source, sink):
        return Operands(source.array().reshape(-1), NO_FLOATS)
    assert isinstance(source, (Accumulated, Copied))
    x = source.x if isinstance(source, Copied) else source.array()
    return Operands(x.reshape(-1), source.target.reshape(-1))


def _check_shapes(array: Floats, name: str, shape: Shape) -> None:
    if array.shape != shape:
        raise CodecValueError(f"{name} has shape {array.shape}, x has {shape}: they must be equal")
