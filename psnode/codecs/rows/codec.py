"""Base classes of codecs whose kernels are generated from two formulas, for psnode's own codecs and for user-defined ones."""

from __future__ import annotations

import dataclasses
import math
import struct
import typing
from abc import abstractmethod
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from psnode.codecs.base import NOTHING, Bytes, Codec, Floats, Shape, Sink, Source, Words
from psnode.codecs.kernels.dots import folded
from psnode.codecs.kernels.parts import reached
from psnode.codecs.rows.coder import Coder, Decoder, SumCoder, Sums
from psnode.codecs.rows.compiled import compiled
from psnode.codecs.rows.formula import Fields, Formula, Program, program_of
from psnode.codecs.rows.interpreter import Interpreted
from psnode.codecs.rows.numba.text import text_of
from psnode.codecs.rows.values import Value
from psnode.codecs.sinks import InnerProducts
from psnode.codecs.sources import leaves_error, operands
from psnode.codecs.stages import FlatCodec
from psnode.errors import CodecSpecError, PayloadError

_FORMATS = {int: "q", bool: "q", float: "d"}


class Generated(FlatCodec):
    """Base of codecs with generated kernels. Their body is a preamble, followed by the output of the formula's program."""

    @abstractmethod
    def formula(self) -> Formula | None:
        """Return the formula of this codec with its current parameters.

        None means that the codec has hand-written kernels. The codec must then override the methods that need a formula.
        """

    @abstractmethod
    def _read(self, body: Bytes, size: int) -> tuple[Decoder, Bytes]:
        """Check `body`. Return the decoder for its parameters, and the program's output in it. Raise PayloadError."""

    def check_fields(self, body: Bytes) -> None:
        """Raise PayloadError if `body` begins with numbers that encode never writes.

        Numbers that the coder checks are not checked again.
        """

    def _preamble(self) -> bytes:
        return b""

    def _max_body(self, shape: Shape) -> int:
        return len(self._preamble()) + program(self).nbytes(math.prod(shape))

    def _fuses(self, source: Source, sink: Sink) -> bool:
        return sink is NOTHING or isinstance(sink, InnerProducts) or leaves_error(source, sink)

    def _encode(self, source: Source, key: Words, body: Bytes, sink: Sink) -> int:
        parts = source.table()
        x, error = operands(source, sink)
        first, used, size = self._preamble(), self._max_body(source.shape), x.size
        body[: len(first)] = np.frombuffer(first, np.uint8)
        coder, coded = coder_of(self), body[len(first) : used]
        dots = sink.dots(size)
        done = coder.encode(x, key, coded, error, Sums(parts, dots))
        if done < size:
            source.refuse(reached(parts), coder.beginning(coded, size, done if error.size else 0))
        if isinstance(sink, InnerProducts):
            sink.record(*folded(dots))
        return len(first) + coder.program.length(coded, size)

    def _decode(self, body: Bytes, out: Floats) -> None:
        coder, rest = self._read(body, out.size)
        coder.decode(rest, out.reshape(-1), np.float32(1), False)

    def _decode_add(self, body: Bytes, out: Floats, weight: np.float32) -> None:
        coder, rest = self._read(body, out.size)
        coder.decode(rest, out.reshape(-1), weight, True)


class RowCodec(Generated):
    """Base of codecs that consist of two formulas (docs/rows.md). A subclass is a frozen dataclass with an `id` and a `number`.

    The fields of the dataclass are parameters of type int, float or bool, which the formulas may use as Python numbers. The
    body consists of the parameters (8 bytes each, int64 or float64), the fields, and the packing. Decoded values are limited to
    the finite range of float32, and NaN becomes its lower end. The interpreter reads payloads whose parameters
    differ from the instance's, so that a peer's payload never causes a compilation.
    """

    number: ClassVar[int]
    may_overflow: ClassVar[bool] = True

    @abstractmethod
    def to_fields(self, v: Value) -> Fields:
        """Return the fields to send for the row `v` (512 float32; the last row is padded with zeros)."""

    @abstractmethod
    def from_fields(self, *fields: Any, **named: Any) -> Value:
        """Return the decoded float32 of every coordinate of a row. The fields are passed by name."""

    def formula(self) -> Formula:
        return self

    def _preamble(self) -> bytes:
        return struct.pack(self._format(), *_settings(self))

    def _read(self, body: Bytes, size: int) -> tuple[Coder, Bytes]:
        start = struct.calcsize(self._format())
        if body.size < start:
            raise PayloadError(f"{self.id}: a body of {body.size} bytes ends inside the parameters")
        settings = struct.unpack(self._format(), body[:start].tobytes())
        coder = coder_of(self) if settings == _settings(self) else interpreted(self._other(settings))
        coder.check(body[start:], size)
        return coder, body[start:]

    def _other(self, settings: tuple[Any, ...]) -> RowCodec:
        """Return the same codec with the parameters `settings`. Raise PayloadError if they are not valid."""
        hints = _hints(type(self))
        if any(kind is bool and value not in (0, 1) for kind, value in zip(hints.values(), settings, strict=True)):
            raise PayloadError(f"{self.id}: {settings} are no parameters")
        values = {name: kind(value) for (name, kind), value in zip(hints.items(), settings, strict=True)}
        try:
            other = type(self)(**values)
            program(other)
        except Exception as error:  # a user's checks and formulas may raise any exception for a peer's parameters
            raise PayloadError(f"{self.id}: {values} are no parameters: {error}") from error
        return other

    def _format(self) -> str:
        return "<" + "".join(_FORMATS[kind] for kind in _hints(type(self)).values())


def preamble(codec: Codec) -> bytes:
    """Return the bytes of a body that precede the program's output: the parameters of a RowCodec, or nothing for other codecs."""
    return codec._preamble() if isinstance(codec, Generated) else b""


def _settings(codec: RowCodec) -> tuple[Any, ...]:
    return tuple(kind(getattr(codec, name)) for name, kind in _hints(type(codec)).items())


@lru_cache
def _hints(cls: type[RowCodec]) -> dict[str, type]:
    """Return the parameters of a codec class with their types. Raise CodecSpecError if a body cannot hold one of the types."""
    found = typing.get_type_hints(cls)
    hints = {field.name: found[field.name] for field in dataclasses.fields(typing.cast(Any, cls))}
    for name, kind in hints.items():
        if kind not in _FORMATS:
            raise CodecSpecError(f"{cls.id}: the parameter {name} is to be an int, a float or a bool")
    return hints


@lru_cache(maxsize=64)
def program(codec: Generated) -> Program:
    """Return the program of the codec's formula. The codec must have a formula."""
    formula = codec.formula()
    assert formula is not None, codec
    made = program_of(formula)
    if any(column.value.op == "given" for column in made.of_rows):
        raise CodecSpecError(f"{codec.id}: a number that is given lies in the body before encode, and nobody has put it there")
    return made


@lru_cache(maxsize=64)
def coder_of(codec: Generated) -> SumCoder:
    """Return a coder for `codec` that uses compiled kernels."""
    return SumCoder(program(codec), compiled(text_of(program(codec))))


def interpreted(codec: Generated) -> Coder:
    """Return a coder for `codec` that uses the interpreter. It serves parameters that this rank did not choose."""
    return Coder(program(codec), Interpreted(program(codec)))
