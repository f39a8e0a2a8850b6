"""Bodies of arrays of any size, made and read by functions that know full rows alone."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Int32s, Words, Words32, readonly
from psnode.codecs.kernels.bitmasks import MAGNITUDE
from psnode.codecs.kernels.finite import INFINITY_BITS
from psnode.codecs.rows.formula import Program, rows_of
from psnode.codecs.rows.language import ROW
from psnode.errors import PayloadError


class Functions(Protocol):
    """Kernels made of a program, for any processor. Arrays are full units of rows, the first row number `first` of `rows`."""

    def survey(self, x: Floats, tops: Int32s) -> bool:
        """Raise `tops`: the largest magnitude, the least and the greatest value of `x`, as integers ordered alike; all finite?"""

    def encode(
        self, x: Floats, first: int, key: Words, tops: Int32s, side: Words32, rows: int, packed: Bytes, error: Floats
    ) -> int:
        """Write numbers to `side` and codes to `packed`, and x - decoded to `error` unless it is empty; the coordinates done.

        Those are fewer than all, full units, where a row is not finite. `error` may lie over `x`.
        """

    def decode(self, side: Words32, rows: int, first: int, packed: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """out = decoded, or out += weight * decoded."""


class Coder:
    """encode and decode of a program, by such functions. What is left behind full units is coded in a room of its own."""

    def __init__(self, program: Program, functions: Functions) -> None:
        self.program, self.functions = program, functions
        self._unit = ROW * program.packed.rows

    def encode(self, x: Floats, key: Words, body: Bytes, error: Floats) -> int:
        """Write the body of `x`, flat; the coordinates done, fewer than all if a value is not finite.

        x - decoded goes to `error`, which may lie over `x`, unless it is empty.
        """
        tops = np.array([0, 0x7FFFFFFF, -0x80000000], np.int32)
        if self.program.sweeps and not self.functions.survey(readonly(x), tops):
            return 0
        side, packed, rest = self._views(body, x.size)
        full, rows = x.size // self._unit * self._unit, rows_of(x.size)
        if full:
            done = self.functions.encode(readonly(x[:full]), 0, key, tops, side, rows, packed, error[:full])
            if done < full:
                return done
        if full < x.size:
            last, lost = np.zeros(self._unit, np.float32), np.empty(self._unit if error.size else 0, np.float32)
            last[: x.size - full] = x[full:]
            room = np.zeros(self.program.packed.unit, np.uint8)
            if self.functions.encode(readonly(last), full // ROW, key, tops, side, rows, room, lost) < self._unit:
                return full
            self.program.packed.cut(room, x.size - full, rest)
            if error.size:
                error[full:] = lost[: x.size - full]
        return x.size

    def decode(self, body: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """out = decoded, or out += weight * decoded; `out` is flat."""
        side, packed, rest = self._views(body, out.size)
        full, rows = out.size // self._unit * self._unit, rows_of(out.size)
        if full:
            self.functions.decode(readonly(side), rows, 0, readonly(packed), out[:full], weight, adding)
        if full < out.size:
            last = np.zeros(self._unit, np.float32)
            last[: out.size - full] = out[full:]
            room = np.zeros(self.program.packed.unit, np.uint8)
            self.program.packed.fill(rest, out.size - full, room)
            self.functions.decode(readonly(side), rows, full // ROW, readonly(room), last, weight, adding)
            out[full:] = last[: out.size - full]

    def beginning(self, body: Bytes, size: int, done: int) -> Floats:
        """The first `done` decoded values, full units, of an array of `size`."""
        out = np.empty(done, np.float32)
        if done:
            side, packed, _ = self._views(body, size)
            end = done // self._unit * self.program.packed.unit
            self.functions.decode(readonly(side), rows_of(size), 0, readonly(packed[:end]), out, np.float32(1), False)
        return out

    def check(self, body: Bytes, size: int) -> None:
        """PayloadError unless `body` is one of `size` coordinates: its length, and numbers that are finite."""
        program, start = self.program, 4 * self.program.side_words(size)
        program.packed.check(body[start:], size, program.id)
        side, rows = body[:start].view(np.uint32), rows_of(size)
        for name, numbers in program.columns(side, rows):
            if int((numbers & np.uint32(MAGNITUDE)).max(initial=0)) >= INFINITY_BITS:
                raise PayloadError(f"{program.id}: {name} is not finite")

    def _views(self, body: Bytes, size: int) -> tuple[Words32, Bytes, Bytes]:
        """The numbers, and the codes of full units and of what is left."""
        start = 4 * self.program.side_words(size)
        end = start + size // self._unit * self.program.packed.unit
        return body[:start].view(np.uint32), body[start:end], body[end : self.program.nbytes(size)]
