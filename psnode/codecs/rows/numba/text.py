"""Generation of a Python module with Numba kernels from a program.

The kernels are `encode_sum`, `decode_to` and, if the program has sums over the whole input, those of `input_sums`.

A row stays in the first-level cache. Some parts of the formula are needed for the whole row: codes to pack, values to sum, and
random draws that may have to be settled. Each of them is a simple loop over the row. Everything else is computed in the loop
that needs it. A `where` whose condition is a number of the row or of the array becomes an `if` around such loops.
"""

from __future__ import annotations

from contextlib import nullcontext

from psnode.codecs.rows.formula import Program
from psnode.codecs.rows.numba.fitted_buckets import encode_body
from psnode.codecs.rows.numba.input_sums import CodeAndSum, sum_up
from psnode.codecs.rows.numba.number_functions import NumberFunctions
from psnode.codecs.rows.numba.row_kernel import PART, Kernel
from psnode.codecs.rows.statements import Store
from psnode.codecs.rows.values import Span, Value, below

_HEADER = '''"""{id}: kernels made of its formula by psnode.codecs.rows. Do not edit: it is written anew."""

import numpy as np

from psnode.codecs.kernels.dots import NO_DOTS, add_row
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.kernels.cache_hints import AHEAD, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.llvm.instructions import instructions, viewed
from psnode.codecs.kernels.llvm.operations import choose, round_down, square_root
from psnode.codecs.kernels.norms import fold, l2_norm
from psnode.codecs.kernels.parts import BEGIN, NO_PARTS, NOT_FINITE, add_parts
from psnode.codecs.kernels.planes import new_rows, pack_codes, pack_row, unpack_codes, unpack_row
from psnode.codecs.kernels.rows import bits_of, draw_coins, high_half, is_finite, largest_512, least_of, low_half
from psnode.codecs.kernels.rows import pack_signs, settled, survey_ends, survey_magnitudes, top_of, uncounted, unpack_signs
from psnode.codecs.kernels.sums import uncut
from psnode.codecs.kernels.tbq import pack_block, unpack_block
from psnode.codecs.kernels.trees import count_512, row_sum, sum_512, tree_of
from psnode.codecs.kernels.trits import pack, unpack
from psnode.codecs.rng import fill

STREAM = np.int64({stream})  # a plain number would be a type of its own in Numba
ONES = np.uint32(0xFFFF)
MAGNITUDE, INFINITE = np.uint32(0x7FFFFFFF), np.uint32(0x7F800000)
NO_ROWS = np.empty(0, np.float32)
NO_ROWS.flags.writeable = False


def survey_sum(x, tops, parts):
    """Add parts to the memory of x, then raise tops to its extremes; are all values finite?"""
    return {survey}


def survey(x, tops):
    """As survey_sum, of values that lie in memory."""
    return survey_sum(x, tops, NO_PARTS)


def encode(x, first, key, tops, side, rows, packed, error):
    """As encode_sum, of values that lie in memory."""
    return encode_sum(x, first, key, tops, side, rows, packed, error, NO_PARTS, NO_DOTS)


def decode(side, rows, first, packed, out, weight, adding):
    """out = decoded, or out += weight * decoded, for full rows, of which out begins at number `first`."""
    decode_to(side, rows, first, packed, NO_ROWS, out, weight, adding)

'''
_LOSE = '''\
def lose(side, rows, packed, x, error):
    """error = x - decoded, for full rows."""
    apart = error.ctypes.data != x.ctypes.data
    decode_to(side, rows, 0, packed, x if apart else NO_ROWS, error, np.float32(-1), True)

'''

_TELLING = {"l2_norm": "{} < 0", "largest": "not {} < np.inf"}  # conditions on numbers of a row, true if the row is not finite


def text_of(program: Program) -> str:
    """Return the source of the module. It depends only on the program."""
    functions = NumberFunctions()
    sums = [*sum_up(program, functions), "", ""] if program.sums else []
    if program.sums_beside:
        sums += [*CodeAndSum(program, functions).lines(), "", "", _LOSE]
    header = _HEADER.format(id=program.id, stream=program.stream, survey=_survey(program))
    encode, decode = Encode(program, functions).lines(), _Decode(program, functions, decodes=True).lines()
    return "\n".join([header, *functions.lines(), *sums, *encode, "", "", *decode, ""])


def _survey(program: Program) -> str:
    """Return the text of the calls that find those extremes of the whole input that the program needs."""
    if "least_magnitude_of_all" not in program.extremes:
        return "survey_ends(x, tops, parts)"
    beside = program.extremes & {"least_of_all", "greatest_of_all"}
    return "survey_magnitudes(x, tops, parts)" + (" and survey_ends(x, tops, NO_PARTS)" if beside else "")


class Encode(Kernel):
    def lines(self) -> list[str]:
        program, rows = self.program, self.rows
        ends = [*(column.value for column in self.columns), program.packed.value]
        rows.numbers([*ends, program.kept])
        rows.put(*self.width(program.packed.width))
        for column in program.of_array:
            rows.put(f"{self.place(column)} = {rows.number(column.value)}")
        before = rows.taken()
        if program.packed.form == "fitted":
            return self._buckets(before)
        with rows.block():
            is_short = self._row(ends) and not rows.uses_random
        body = rows.taken()
        adding = [] if program.sweeps else self.adding()
        fetched = ["        if error.size:", "            fetch_row_to_write(error, start + AHEAD)"]
        if not is_short:
            fetched.insert(0, "        fetch_row(x, start + AHEAD)")
        return [
            *self._head(adding, before),
            "    for start in range(0, x.size, 512):",
            "        row = first + start // 512",
            *adding,
            *fetched,
            "        v = source[start : start + 512]",
            *body,
            "    return x.size",
        ]

    def _head(self, adding: list[str], before: list[str]) -> list[str]:
        return [
            "@kernel",
            "def encode_sum(x, first, key, tops, side, rows, packed, error, parts, dots):",
            '    """Code full rows, of which x begins at number `first`; the coordinates done, all if they are finite."""',
            "    wide()",
            *self.scratch(),
            *self.views(),
            "    in_place = error.ctypes.data == x.ctypes.data",
            "    source, left, shown = uncounted(x), uncounted(error), np.empty(512, np.float32)",
            *(["    adding, cursor = len(parts) > 1, BEGIN"] if adding else []),
            *before,
        ]

    def _buckets(self, before: list[str]) -> list[str]:
        """Return the lines of a kernel that processes one bucket of rows at a time."""
        adding = [] if self.program.sweeps else self.adding()
        body = encode_body(self)
        return [
            *self._head(adding, before),
            "    for at in range(buckets, (buckets + 3) // 4 * 4):",
            "        widths[at] = np.uint8(0)",
            f"    for start in range(0, x.size, {self.digits}):",
            "        row = first + start // 512",
            *adding,
            f"        whole = source[start : start + {self.digits}]",
            *body,
            "    return x.size",
        ]

    def _row(self, ends: list[Value]) -> bool:
        """Append the statements that code a row.

        Return True if a single loop computes the codes. The processor then prefetches without help.
        """
        rows, form, coded = self.rows, self.program.packed.form, self.coded
        for column in (column for column in self.program.of_rows if column.value.op == "given"):
            rows.define(column.value, self.place(column))
        refused = self._refused(ends)
        if refused:
            rows.put(f"if {refused}:", "    return start")
        for column in (column for column in self.program.of_rows if column.value.op != "given"):
            rows.put(f"{self.place(column)} = {rows.number(column.value)}")
        if form == "halves":
            rows.put("part = halves[start : start + 512]")
        if self.program.packed.rows > 1:
            rows.put(PART.format(self.digits))
        if refused is None:
            rows.put("top = np.uint32(0)")
            coded = coded._replace(beside="top = max(top, np.uint32(bits_of(v[{at}]) & MAGNITUDE))")
        rows.into(self.program.packed.value, coded)
        if refused is None:
            rows.put("if top >= INFINITE:", "    return start")
        rows.put(*self.packing("pack"))
        self.left("start")
        return refused is None

    def left(self, start: str) -> None:
        """Append the statements that use a row's codes: inner products, and the error of the row that begins at `start`."""
        rows = self.rows
        is_fitted = self.program.packed.form == "fitted"  # kept values then have many statements, which are compiled once only
        rows.put("if dots.size or error.size:" if is_fitted else "if dots.size:")
        with rows.block():
            rows.into(self.program.kept, Store("shown[{at}] = {x}"))
            with rows.when("dots.size") if is_fitted else nullcontext():
                rows.put("add_row(v, shown, row, dots)")
        rows.put("if error.size:")
        with rows.block():
            rows.put(f"lost = left[{start} : {start} + 512]")
            if is_fitted:
                rows.put("for i in range(512):", "    lost[i] = v[i] - shown[i]")
                return
            rows.put("if not in_place:", "    for i in range(512):", "        lost[i] = v[i]")
            rows.into(self.program.kept, Store("lost[{at}] -= {x}"))

    def _refused(self, ends: list[Value]) -> str | None:
        """Return the condition under which a row is not coded.

        The result is an empty string if no check is needed, and None if the loop over the row must check its values.
        """
        if self.program.sweeps or self.program.sums:
            return ""  # the sweep has checked all of the input
        if self.program.packed.rows > 1:
            return f"start % {self.digits} == 0 and not is_finite(x[start : start + {self.digits}])"
        for value in below(ends):
            if value.op in _TELLING and value.args[0].op == "input":
                return _TELLING[value.op].format(self.rows.number(value))
        return "not is_finite(v)" if any(value.span is Span.ROW for value in below(ends)) else None


class _Decode(Kernel):
    def _add_or_overwrite(self) -> None:
        """Append two loops over a row, one that adds and one that overwrites. Only one of them runs."""
        program, rows = self.program, self.rows
        form = "y[{at}] += weight * {x}"
        if program.packed.form == "sparse":  # where nothing was sent, -0 must stay -0
            form = "y[{at}] = y[{at}] + weight * {x} if dense or part[{at}] != np.uint8(1) else y[{at}]"
        rows.put("if adding:")
        with rows.block():
            rows.into(program.decoded, Store(form))
        rows.put("else:")
        with rows.block():
            rows.into(program.decoded, Store("y[{at}] = {x}"))

    def lines(self) -> list[str]:
        program, rows = self.program, self.rows
        columns = {column.name: column for column in self.columns}
        ends = [program.decoded] if program.width is None else [program.width, program.decoded]
        fields = [value for value in below(ends) if value.op == "field"]
        for value in (value for value in fields if value.span is Span.ARRAY):
            rows.define(value, self.place(columns[str(value.detail)]))
        rows.numbers([program.decoded])
        rows.put(*self.width(program.width))
        before = rows.taken()
        if program.place_of_key is not None:
            at = program.place_of_key
            before.insert(0, f"    key = viewed(side[{at} : {at + 4}].copy(), np.uint64)")
        with rows.block():
            for value in (value for value in fields if value.span in (Span.BUCKET, Span.ROW)):
                rows.define(value, self.place(columns[str(value.detail)]))
            if program.packed.form == "halves":
                rows.put("part = halves[start : start + 512]")
            rows.put(*self.packing("unpack"))
            if program.packed.form == "fitted":  # a separate loop adds, because coordinates that share random bits are far apart
                rows.into(program.decoded, Store("shown[{at}] = {x}"))
                rows.put("if adding:", "    for i in range(512):", "        y[i] += weight * shown[i]")
                rows.put("else:", "    for i in range(512):", "        y[i] = shown[i]")
            else:
                self._add_or_overwrite()
        body = rows.taken()
        return [
            "@kernel",
            "def decode_to(side, rows, first, packed, base, out, weight, adding):",
            '    """As decode; if `base` is not empty, out is that beforehand."""',
            "    wide()",
            *self.scratch(),
            *self.views(),
            "    source, target = uncounted(base), uncounted(out)",
            *(["    shown = np.empty(512, np.float32)"] if program.packed.form == "fitted" else []),
            *before,
            "    for start in range(0, out.size, 512):",
            "        row = first + start // 512",
            "        fetch_row_to_write(out, start + AHEAD)",
            "        y = target[start : start + 512]",
            "        if base.size:",
            "            v = source[start : start + 512]",
            "            for i in range(512):",
            "                y[i] = v[i]",
            *body,
        ]
