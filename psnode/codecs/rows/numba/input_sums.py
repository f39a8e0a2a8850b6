"""The Numba kernels that compute a program's sums over the whole input, either before the sweep that codes or during it."""

from __future__ import annotations

from psnode.codecs.rows.formula import FIRST_SUM, NORM, Program
from psnode.codecs.rows.numba.number_functions import NumberFunctions
from psnode.codecs.rows.numba.row_kernel import Kernel
from psnode.codecs.rows.numba.row_statements import NumbaRows, rooms_of
from psnode.codecs.rows.values import Dtype, Span, Value


def sum_up(program: Program, functions: NumberFunctions) -> list[str]:
    """Return the lines of the kernel `sum_up`. It keeps one float64 per row and sum, which trees add up at the end."""
    if all(value.op == NORM for value in program.sums):
        return _norm_alone(program)
    rows = NumbaRows(program, functions, "")
    rows.numbers([value.args[0] for value in program.sums])
    before = rows.taken()
    with rows.block():
        _sum_row(program, rows)
    body = rows.taken()
    return [
        "@kernel",
        "def sum_up(x, key, tops):",
        '    """Sums over all of x, behind the extremes; are all values finite?"""',
        "    wide()",
        "    lanes, last = np.empty(576, np.float32), np.zeros(512, np.float32)",
        *rooms_of(rows),
        f"    source, found = uncounted(x), np.empty(({len(program.sums)}, (x.size + 511) // 512), np.float64)",
        *before,
        *_each_row([]),
        "        if not is_finite(v):",
        "            return False",
        *body,
        *_totals(program),
        "    return True",
    ]


def _norm_alone(program: Program) -> list[str]:
    """Return the lines of a kernel that computes only the norm. The norm also shows whether all values are finite."""
    return [
        "@kernel",
        "def sum_up(x, key, tops):",
        '    """The norm of all of x, behind the extremes; are all values finite?"""',
        "    norm = l2_norm(x, np.empty(576, np.float32))",
        "    if norm < 0:",
        "        return False",
        *(f"    viewed(tops, np.float64)[{program.place_of(value)}] = uncut(norm, x)" for value in program.sums),
        "    return True",
    ]


def _each_row(adding: list[str]) -> list[str]:
    """Return the lines that begin a loop over rows. The last row is filled with zeros after the end of x.

    `adding`: the lines that add parts to the rows.
    """
    return [
        "    for start in range(0, x.size, 512):",
        "        row, here = start // 512, min(512, x.size - start)",
        *adding,
        "        fetch_row(x, start + AHEAD)",
        "        v = source[start : start + 512]",
        "        if here < 512:",
        "            for i in range(here):",
        "                last[i] = v[i]",
        "            v = last",
    ]


def _totals(program: Program) -> list[str]:
    places = ((value.op == NORM, program.place_of(value)) for value in program.sums)
    totals = (
        (place, "uncut(l2_norm(x, lanes), x)" if is_norm else f"tree_of(found[{place - FIRST_SUM}])") for is_norm, place in places
    )
    return [f"    viewed(tops, np.float64)[{place}] = {total}" for place, total in totals]


def _sum_row(program: Program, rows: NumbaRows, coded: str = "") -> None:
    """Append the statements that store a row's part of every sum.

    `coded`: the name of the array of the codes if these are conditions, else empty.
    """
    for place, value in enumerate(program.sums):
        if value.op != NORM:
            found = (
                f"count_512({coded}, here)" if coded and value.args[0] is program.packed.value else _of_row(value.args[0], rows)
            )
            rows.put(f"found[{place}, row] = {found}")


def _of_row(x: Value, rows: NumbaRows) -> str:
    """Append the statements that a row's part of a sum needs, and return the expression of this part."""
    if x.span is Span.ROW:
        return rows.number(x)
    if x.kind is Dtype.BOOL:
        return f"count_512({rows.room(x)}, here)"
    total = rows.summed(x)
    with rows.when(f"here < 512 or not np.isfinite({total})"):
        rows.put(f"{total} = row_sum({'v' if x.op == 'input' else rows.room(x)}, here, lanes)")
    return total


class CodeAndSum(Kernel):
    """The kernel that codes rows and computes the sums in the same sweep: see Program.sums_beside."""

    def lines(self) -> list[str]:
        """Return the lines of the kernel."""
        program, rows = self.program, self.rows
        ends = [*(column.value for column in program.of_rows), program.packed.value]
        rows.numbers([*ends, *(value.args[0] for value in program.sums)])
        before = rows.taken()
        with rows.block():
            rows.put("top = np.uint32(0)")
            if program.packed.form == "halves":
                rows.put("part = halves[start : start + 512] if here == 512 else spare")
            rows.into(program.packed.value, self.coded._replace(beside="top = max(top, np.uint32(bits_of(v[{at}]) & MAGNITUDE))"))
            rows.put("if top >= INFINITE:", "    return False")
            if program.of_rows or program.packed.form != "halves":  # halves are stored where they are packed
                with rows.when("here == 512"):
                    for column in program.of_rows:
                        rows.put(f"{self.place(column)} = {rows.number(column.value)}")
                    rows.put(*self.packing("pack"))
            _sum_row(program, rows, "low" if program.packed.form == "signs" else "")
        body = rows.taken()
        return [
            "@kernel",
            "def code_and_sum(x, key, tops, side, rows, packed, parts, found):",
            '    """Add parts to x, code its full rows, and write the sums of all rows to found; are all values finite?"""',
            "    wide()",
            *self.scratch(),
            *self.views(),
            "    last, spare = np.zeros(512, np.float32), np.empty(512, np.uint16)",
            "    source = uncounted(x)",
            "    adding, cursor = len(parts) > 1, BEGIN",
            *before,
            *_each_row(self.adding("False")),
            *body,
            "    return True",
        ]
