"""Encoding and decoding of arrays of any size with functions that handle only full rows."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from psnode.codecs.arrays import Bytes, Float64s, Floats, Int32s, Words, Words32, readonly
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.dots import NO_DOTS, add_row
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.kernels.parts import BEGIN, NO_PARTS, NOT_FINITE, PartTable, add_parts
from psnode.codecs.kernels.trees import tree_of
from psnode.codecs.rows.formula import Program, rows_of
from psnode.codecs.rows.language import ROW
from psnode.errors import PayloadError


class Decoder(Protocol):
    """Decoder of bodies that have been checked."""

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Write the decoded values to `out` (flat), or add `weight` times these values to `out` if `adding` is True."""


class Functions(Protocol):
    """Kernels made from a program, for any processor.

    Arrays hold full units of rows. Their first row is row number `first` of an input of `rows` rows.
    """

    def survey(self, x: Floats, tops: Int32s) -> bool:
        """Update the extremes in `tops` with those of `x`; Program.of_input describes `tops`.

        Return True if all values are finite.
        """

    def sum_up(self, x: Floats, key: Words, tops: Int32s) -> bool:
        """Write the program's sums over all of `x` to `tops`, after `survey`. Return True if all values are finite.

        `tops` is laid out as in Program.of_input. Programs without sums do not need this function.
        """

    def encode(
        self, x: Floats, first: int, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats
    ) -> int:
        """Write numbers to `side`, codes to `packed`, and x - decoded to `error` unless it is empty.

        Return the number of coordinates that were coded. If a row is not finite, fewer than all are coded, but always full
        units. `error` may share the memory of `x`.
        """

    def decode(self, side: Words32, rows: int, first: int, packed: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Write the decoded values to `out`, or add `weight` times these values to `out` if `adding` is True."""


class SumFunctions(Functions, Protocol):
    """Kernels whose sweep also does the work that `Sums` describes. With parts or dots, the units must start at row 0."""

    def survey_sum(self, x: Floats, tops: Int32s, parts: PartTable) -> bool:
        """Add the parts to `x`, then do the work of `survey`. Return False if a value or a part is not finite."""

    def encode_sum(
        self, x: Floats, first: int, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats,
        parts: PartTable, dots: Float64s,
    ) -> int:  # fmt: skip
        """Add the parts to `x`, then do the work of `encode`. Fewer coordinates are coded if a value or a part is not finite."""

    def code_and_sum(
        self, x: Floats, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, parts: PartTable, found: Float64s
    ) -> bool:
        """Add the parts to `x`, then code all full rows of `x`. Return False if a value or a part is not finite.

        The sums of all rows are written to `found`, of shape (sums, rows). The numbers of the array are not written. A later
        call of `encode` writes them. Only programs with Program.sums_beside have this function and `lose`.
        """

    def lose(self, side: Words32, rows: int, packed: Bytes, x: Floats, error: Floats) -> None:
        """Write x - decoded to `error`, for full rows. `error` may share the memory of `x`."""


class Sums(NamedTuple):
    """Additional work that is done in the sweep that codes.

    `parts` are first added to the values in memory. Inner products of the values and the decoded values are written to `dots`,
    an array made by psnode.codecs.kernels.dots.begun. If `dots` is empty, no inner products are computed.
    """

    parts: PartTable
    dots: Float64s


NO_SUMS = Sums(NO_PARTS, NO_DOTS)


class Coder:
    """Encoder and decoder of arrays by a program, with its functions.

    The values after the last full unit are coded in other memory.
    """

    def __init__(self, program: Program, functions: Functions) -> None:
        self.program, self.functions = program, functions
        self._unit = ROW * program.packed.rows

    def encode(self, x: Floats, key: Words, body: Bytes, error: Floats, sums: Sums = NO_SUMS) -> int:
        """Write the body of `x` (flat). Return the number of coordinates coded. All are coded unless a value is not finite.

        x - decoded is written to `error` unless it is empty. `error` may share the memory of `x`. Only a SumCoder takes `sums`.
        """
        tops = self.program.of_input(x.size)
        if self.program.sweeps:
            if not self._survey(readonly(x), tops, sums.parts):
                return 0
            sums = sums._replace(parts=NO_PARTS)
        if self.program.sums:
            if len(sums.parts) > 1 and add_parts(sums.parts, BEGIN, 0, x.size) == NOT_FINITE:
                return 0
            sums = sums._replace(parts=NO_PARTS)
            if not self.functions.sum_up(readonly(x), key, tops):
                return 0
        side, packed = self._views(body, x.size)
        full, rows = x.size // self._unit * self._unit, rows_of(x.size)
        packed = packed[: full // self._unit * self.program.packed.unit]
        if full:
            done = self._code(readonly(x[:full]), key, tops, side, rows, packed, error[:full], sums)
            if done < full:
                return done
        if full < x.size:
            if len(sums.parts) > 1 and add_parts(sums.parts, BEGIN, full, x.size) == NOT_FINITE:
                return full
            if not self._code_rest(x, key, tops, body, error, sums.dots):
                return full
        return x.size

    def _code_rest(self, x: Floats, key: Words, tops: Int32s, body: Bytes, error: Floats, dots: Float64s) -> bool:
        """Code the values of `x` after the last full unit. Return True if all of them are finite."""
        full, rows = x.size // self._unit * self._unit, rows_of(x.size)
        side, _, rest = self._split(body, x.size)
        last, lost = np.zeros(self._unit, np.float32), np.empty(self._unit if error.size else 0, np.float32)
        last[: x.size - full] = x[full:]
        room = np.zeros(self.program.packed.unit, np.uint8)
        if self.functions.encode(readonly(last), full // ROW, key, tops, side, rows, room, lost) < self._unit:
            return False
        self.program.packing(side, x.size).cut(room, x.size - full, rest)
        if error.size:
            error[full:] = lost[: x.size - full]
        if dots.size:
            self._multiply(last, full, x.size, side, room, dots)
        return True

    def _survey(self, x: Floats, tops: Int32s, parts: PartTable) -> bool:
        """Do the work that SumFunctions.survey_sum describes."""
        return self.functions.survey(x, tops)

    def _code(
        self, x: Floats, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats, sums: Sums
    ) -> int:
        """Encode the full units, as SumFunctions.encode_sum describes."""
        return self.functions.encode(x, 0, key, tops, side, rows, packed, error)

    def _multiply(self, last: Floats, full: int, size: int, side: Words32, room: Bytes, dots: Float64s) -> None:
        """Write the inner products of the last unit, which is padded with zeros from coordinate `size` on."""
        decoded = np.empty(self._unit, np.float32)
        self.functions.decode(readonly(side), rows_of(size), full // ROW, readonly(room), decoded, np.float32(1), False)
        decoded[size - full :] = 0
        for start in range(0, size - full, ROW):
            add_row(readonly(last[start : start + ROW]), readonly(decoded[start : start + ROW]), (full + start) // ROW, dots)

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Write the decoded values to `out` (flat), or add `weight` times these values to `out` if `adding` is True."""
        side, packed, rest = self._split(body, out.size)
        full, rows = out.size // self._unit * self._unit, rows_of(out.size)
        if full:
            self.functions.decode(readonly(side), rows, 0, readonly(packed), out[:full], weight, adding)
        if full < out.size:
            last = np.zeros(self._unit, np.float32)
            last[: out.size - full] = out[full:]
            room = np.zeros(self.program.packed.unit, np.uint8)
            self.program.packing(side, out.size).fill(rest, out.size - full, room)
            self.functions.decode(readonly(side), rows, full // ROW, readonly(room), last, weight, adding)
            out[full:] = last[: out.size - full]

    def beginning(self, body: Bytes, size: int, done: int) -> Floats:
        """Return the first `done` decoded values of an array of `size` values. They must fill whole units."""
        out = np.empty(done, np.float32)
        if done:
            side, packed = self._views(body, size)
            end = self.program.packing(side, size).length(packed, done)
            self.functions.decode(readonly(side), rows_of(size), 0, readonly(packed[:end]), out, np.float32(1), False)
        return out

    def check(self, body: Bytes, size: int) -> None:
        """Raise PayloadError unless `body` is valid for `size` coordinates.

        Its length must be right, its numbers finite, and its constants those of the program.
        """
        program, start = self.program, 4 * self.program.side_words(size)
        if body.size < start:
            raise PayloadError(f"{program.id}: a body of {body.size} bytes ends inside its numbers")
        side, rows = body[:start].view(np.uint32), rows_of(size)
        program.packing(side, size).check(body[start:], size, program.id)
        if program.packed.form == "fitted" and program.padding(side, size).any():
            raise PayloadError(f"{program.id}: the widths are not padded with zeros")
        for name, at, word in program.constants():
            if size and side[at] != word:
                raise PayloadError(f"{program.id}: {name} is not that of these parameters")
        for name, numbers in program.columns(side, rows):
            if int((numbers & np.uint32(MAGNITUDE)).max(initial=0)) >= INFINITY_BITS:
                raise PayloadError(f"{program.id}: {name} is not finite")

    def _views(self, body: Bytes, size: int) -> tuple[Words32, Bytes]:
        """Return views of the numbers and of the codes in `body`."""
        start = 4 * self.program.side_words(size)
        return body[:start].view(np.uint32), body[start : self.program.nbytes(size)]

    def _split(self, body: Bytes, size: int) -> tuple[Words32, Bytes, Bytes]:
        """Return views of the numbers, of the codes of full units, and of the codes after the last full unit."""
        side, codes = self._views(body, size)
        end = self.program.packing(side, size).length(codes, size // self._unit * self._unit)
        return side, codes[:end], codes[end:]


class SumCoder(Coder):
    """Coder whose functions also add parts and compute inner products, in the sweep that codes."""

    functions: SumFunctions

    def __init__(self, program: Program, functions: SumFunctions) -> None:
        super().__init__(program, functions)

    def encode(self, x: Floats, key: Words, body: Bytes, error: Floats, sums: Sums = NO_SUMS) -> int:
        """Encode as Coder.encode does.

        If Program.sums_beside, one sweep codes and sums, and a second sweep computes the error.
        """
        if not self.program.sums_beside or sums.dots.size:
            return super().encode(x, key, body, error, sums)
        if self.code_and_sum(x, key, body, error, sums.parts) is None:
            return 0
        full = x.size // ROW * ROW
        if error.size and full:
            side, packed = self._views(body, x.size)
            packed = readonly(packed[: full // ROW * self.program.packed.unit])
            self.functions.lose(readonly(side), rows_of(x.size), packed, readonly(x[:full]), error[:full])
        return x.size

    def code_and_sum(self, x: Floats, key: Words, body: Bytes, error: Floats, parts: PartTable) -> Float64s | None:
        """Write the body of `x` in one sweep. Write the error of an incomplete last row to `error` unless it is empty.

        Return the sums of rows, of shape (sums, rows), or None if a value of `x` or of a part is not finite.
        """
        tops, full, rows = self.program.of_input(x.size), x.size // ROW * ROW, rows_of(x.size)
        side, packed = self._views(body, x.size)
        packed, found = packed[: full // ROW * self.program.packed.unit], np.empty((len(self.program.sums), rows))
        if not self.functions.code_and_sum(readonly(x), key, tops, side, rows, packed, parts, found):
            return None
        for value, of_rows in zip(self.program.sums, found, strict=True):
            tops.view(np.float64)[self.program.place_of(value)] = tree_of(of_rows.copy())
        if full < x.size:
            self._code_rest(x, key, tops, body, error, NO_DOTS)
        else:  # only the numbers of the array are written
            self.functions.encode(readonly(x[:0]), 0, key, tops, side, rows, packed[:0], error[:0])
        return found

    def _survey(self, x: Floats, tops: Int32s, parts: PartTable) -> bool:
        return self.functions.survey_sum(x, tops, parts)

    def _code(
        self, x: Floats, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats, sums: Sums
    ) -> int:
        return self.functions.encode_sum(x, 0, key, tops, side, rows, packed, error, *sums)
