"""The interpreter of programs, which uses NumPy and processes one row at a time. It is slow, but the reference for all kernels.

It also decodes payloads with parameters for which no kernels were compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnode.codecs.arrays import Bytes, Floats, Words, Words32
from psnode.codecs.rng import BLOCK, HALF, words
from psnode.codecs.rows.formula import NORM, OF_ALL, PLACES, SIZE, Program, rows_of
from psnode.codecs.rows.language import LARGEST, ROW
from psnode.codecs.rows.numpy_words import apply, norm_of, tree
from psnode.codecs.rows.values import Dtype, Span, Value, below

_TIES = 256  # added to a codec's stream; the sum is the stream of the bits that settle ties
_ONES = np.uint32(0xFFFF)


class Interpreted:
    """Encoder and decoder of rows by a program, one row at a time, with the same functions as a generated module."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def survey(self, x: Floats, tops: Any) -> bool:
        """Update `tops` (laid out as in Program.of_input) with the extremes of `x`. Return True if all values are finite."""
        bits = x.view(np.int32)
        ordered = bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))
        tops[0] = max(int(tops[0]), int((bits & np.int32(0x7FFFFFFF)).max(initial=0)))
        tops[1] = min(int(tops[1]), int(ordered.min(initial=0x7FFFFFFF)))
        tops[2] = max(int(tops[2]), int(ordered.max(initial=-0x80000000)))
        less = (x.view(np.uint32) - np.uint32(1)) & np.uint32(0x7FFFFFFF)
        tops[4] = min(int(tops[4]), int(less.min(initial=0x7FFFFFFF)))
        return bool(tops[0] < 0x7F800000)

    def sum_up(self, x: Floats, key: Words, tops: Any) -> bool:
        """Write the program's sums over all of `x`, of any size, to `tops`. Return True if all values are finite."""
        if not np.isfinite(x).all():
            return False
        found = np.zeros((len(self.program.sums), rows_of(x.size)))
        for row in range(rows_of(x.size)):
            v, here = np.zeros((1, ROW), np.float32), min(ROW, x.size - ROW * row)
            v[0, :here] = x[ROW * row : ROW * row + here]
            evaluation = RowEvaluation(v, row, key, self.program, tops)
            for place, value in enumerate(self.program.sums):
                if value.op != NORM:
                    found[place, row] = _sum_of_row(evaluation.value(value.args[0]), here)
        for value, sums in zip(self.program.sums, found, strict=True):
            total = _norm_of_all(x) if value.op == NORM else _tree_of(sums)
            tops.view(np.float64)[self.program.place_of(value)] = total
        return True

    def encode(self, x: Floats, first: int, key: Words, tops: Any, side: Words32, rows: int, packed: Bytes, error: Floats) -> int:
        """Write the numbers and codes of the full rows `x`. The first one is row number `first` of `rows`.

        Return the number of coordinates coded: all of them, or those before the first unit that is not finite. x - decoded is
        written to `error` unless it is empty.
        """
        program, unit = self.program, ROW * self.program.packed.rows
        codes, used, size = np.empty(unit, np.uint32), 0, ROW * rows
        for start in range(0, x.size, ROW):
            v = x[start : start + ROW]
            if start % unit == 0 and not np.isfinite(x[start : start + unit]).all():
                return start
            row = first + start // ROW
            found = RowEvaluation(v[None], row, key, program, tops)
            found.know_sums()
            if start % unit == 0:
                found.know_bucket(x[start : start + unit])
                of_bucket = {value: number for value, number in found.known.items() if value.span is Span.BUCKET}
            found.known.update(of_bucket)
            for place, column in enumerate(program.of_array):
                side[place] = found.word(column.value)
            for place, column in enumerate(program.of_rows):
                side[len(program.of_array) + place * rows + row] = found.word(column.value)
            for place, column in enumerate(program.of_buckets):
                side[len(program.of_array) + place * program.units(rows) + row // program.packed.rows] = found.word(column.value)
            coded = found.value(program.packed.value)
            codes[start % unit : start % unit + ROW] = coded
            if (start + ROW) % unit == 0:
                packing = program.packing(side, size)
                if packing.form == "fitted":
                    program.padding(side, size)[:] = 0
                    packing.widths[row // packing.rows] = int(codes.max()).bit_length()
                made = packing.of_unit(row // packing.rows).pack(codes)
                packed[used : used + made.size] = made
                used += made.size
            if error.size:
                found.known[_symbol(program.kept)] = coded
                with np.errstate(all="ignore"):
                    error[start : start + ROW] = v - found.value(program.kept).reshape(-1)
        return x.size

    def decode(self, side: Words32, rows: int, first: int, packed: Bytes, out: Floats, weight: np.float32, adding: bool) -> None:
        """Write the decoded values to the full rows `out`, or add `weight` times these values to `out` if `adding` is True.

        The first row of `out` is row number `first` of `rows`.
        """
        packing, unit = self.program.packing(side, ROW * rows), ROW * self.program.packed.rows
        used = 0
        for start in range(0, out.size, ROW):
            if start % unit == 0:
                form = packing.of_unit((first + start // ROW) // packing.rows)
                length = form.nbytes(unit) if form.form == "fitted" else form.length(packed[used:], unit)
                data, used = packed[used : used + length], used + length
                all_codes = form.unpack(data, unit)
            codes = all_codes[start % unit :][:ROW]
            y = self._decoded(codes, side, rows, first + start // ROW)
            changed = (codes != 1) | (data[:2] == 255).all() if form.form == "sparse" else np.True_
            with np.errstate(all="ignore"):
                z = out[start : start + ROW]
                out[start : start + ROW] = np.where(changed, z + weight * y, z) if adding else y

    def _decoded(self, codes: Words32, side: Words32, rows: int, row: int) -> Floats:
        program = self.program
        at = program.place_of_key
        key = np.zeros(2, np.uint64) if at is None else side[at : at + 4].copy().view(np.uint64)
        found = RowEvaluation(np.zeros((1, ROW), np.float32), row, key, program, None)
        numbers = {column.name: side[place] for place, column in enumerate(program.of_array)}
        base = len(program.of_array)
        numbers |= {column.name: side[base + place * rows + row] for place, column in enumerate(program.of_rows)}
        bucket, buckets = row // program.packed.rows, program.units(rows)
        numbers |= {column.name: side[base + place * buckets + bucket] for place, column in enumerate(program.of_buckets)}
        for value in below([program.decoded]):
            if value.op == "field":
                found.known[value] = np.asarray(numbers[str(value.detail)]).reshape(1, 1).view(value.kind.value)
            elif value.op == "codes":
                found.known[value] = codes[None].astype(value.kind.value)
        return np.broadcast_to(found.value(program.decoded), (1, ROW)).reshape(-1)


class RowEvaluation:
    """Values of a program for one or more rows `v`, of shape (rows, 512). The first of them is row number `row` of the input."""

    def __init__(self, v: Floats, row: int, key: Words, program: Program, tops: Any) -> None:
        self.v, self.row, self.key, self.program, self.tops = v, row, key, program, tops
        self.stream = program.stream
        self.known: dict[Value, Any] = {}

    def know_sums(self) -> None:
        """Store the sums over the whole input, which are in `tops`, as known values."""
        for value in self.program.sums:
            self.known[value] = self.tops.view(np.float64)[self.program.place_of(value)].astype(value.kind.value)

    def know_bucket(self, x: Floats) -> None:
        """Compute the numbers of the bucket `x`, and store them as known values.

        The bucket consists of full rows and begins with the first row of the evaluation.
        """
        for value in below(self.program.ends):
            if value.op == "l2_norm_of_bucket":
                self.known[value] = np.array(norm_of(x), np.float64)
            elif value.op == "size_of_bucket":
                self.known[value] = np.array(min(x.size, int(self.tops[SIZE]) - ROW * self.row), np.uint32)

    def value(self, end: Value) -> Any:
        with np.errstate(all="ignore"):
            for value in below([end], known=list(self.known)):
                self.known[value] = self._one(value)
        return self.known[end]

    def word(self, value: Value) -> Any:
        """Return a number of a row or of the array as the uint32 that has the same four bytes."""
        return np.asarray(self.value(value)).astype(value.kind.value).reshape(1).view(np.uint32)[0]

    def _one(self, value: Value) -> Any:
        arguments = [self.known[arg] for arg in value.args]
        if value.op == "input":
            return self.v
        if value.op == "random16":
            return _sixteen(self.key, self.stream, self.row, len(self.v))[:, np.arange(ROW) % int(str(value.detail))]
        if value.op == "place_in_row":
            return np.arange(ROW, dtype=np.uint32)[None]
        if value.op == "key_word":
            return self.key.view(np.uint32)[int(str(value.detail))]
        if value.op == "coin":
            return _coins(self.key, self.stream, self.row, len(self.v))
        if value.op == "settle":
            return self._settle(*arguments)
        if value.op == "size_of_all":
            return np.array(self.tops[SIZE], np.uint32)
        if value.op in OF_ALL:
            return _top(value.op, self.tops)
        return apply(value, arguments)

    def _settle(self, fixed: Words32, exact: Any) -> Words32:
        codes = fixed >> np.uint32(16)
        for row, i in np.argwhere((fixed & _ONES) == _ONES):
            a = float(exact[row, i])
            if not np.isfinite(a):
                continue  # of a choice's other side, so that the code is not used
            codes[row, i] += _chance(a - float(np.floor(a)), self.key, self.stream + _TIES, (self.row + int(row)) * ROW + int(i))
        return codes


def _symbol(end: Value) -> Value:
    """Return the symbol of the codes on which `end` depends, or a new symbol if it depends on none."""
    return next((value for value in below([end]) if value.op == "codes"), Value("codes", Dtype.U32, span=Span.COORDINATE))


def _sixteen(key: Words, stream: int, row: int, rows: int) -> Words32:
    planes = words(key, stream, BLOCK * rows, BLOCK * row).reshape(rows, BLOCK, 4).transpose(0, 2, 1).reshape(rows, HALF)
    return np.concatenate([planes & _ONES, planes >> np.uint32(16)], axis=1)


def _coins(key: Words, stream: int, row: int, rows: int) -> Any:
    """Return the coins of `rows` rows from row `row` on, as a bool per coordinate.

    The random words of 8192 coordinates come from 64 calls of the generator, each of which returns four words. Number w of
    these 256 words is word w // 64 of call w mod 64. The coin of coordinate i is bit i mod 32 of word i // 32.
    """
    found = np.empty((rows, ROW), bool)
    for at in range(rows):
        piece, part = divmod(row + at, 16)
        planes = words(key, stream, BLOCK, BLOCK * piece).T.reshape(-1)[16 * part : 16 * (part + 1)]
        found[at] = np.unpackbits(planes.astype("<u4").view(np.uint8), bitorder="little")
    return found


def _chance(fraction: float, key: Words, stream: int, index: int) -> bool:
    """Return True with probability `fraction`. The fraction is compared with a random fraction of 128 bits."""
    for word in words(key, stream, 1, index)[0].tolist():
        fraction *= 2.0**32
        if word != int(fraction):
            return bool(word < int(fraction))
        fraction -= int(fraction)
    return False


def _top(op: str, tops: Any) -> Any:
    word = np.int32(tops[PLACES[op]])
    if op == "least_magnitude_of_all":
        return np.array((int(word) + 1) & 0x7FFFFFFF, np.uint32).view(np.float32)
    return np.array(word if word >= 0 else word ^ np.int32(0x7FFFFFFF)).view(np.float32)


def _sum_of_row(x: Any, here: int) -> float:
    """Return a row's part of a sum over the whole input.

    It is the sum of the row's first `here` values, the number of its conditions that are true, or its only number.
    """
    if x.size == 1:
        return float(x.reshape(1)[0])
    if x.dtype == bool:
        return float(x[0, :here].sum())
    kept = np.where(np.arange(ROW) < here, x, np.float32(0))
    with np.errstate(all="ignore"):
        found = float(tree(kept)[0])
        return found if np.isfinite(found) else 2.0**10 * float(tree(kept * np.float32(2.0**-10))[0])


def _tree_of(sums: Any) -> float:
    """Return the total of the sums of rows, added 512 at a time by the tree until one number is left."""
    while sums.size > 1:
        sums = tree(np.concatenate([sums, np.zeros(-sums.size % ROW)]).reshape(-1, ROW))
    return float(sums[0]) + 0.0


def _norm_of_all(x: Floats) -> float:
    norm = norm_of(x)
    return norm if norm < LARGEST else norm_of(x * np.float32(2.0**-20)) * 2.0**20
