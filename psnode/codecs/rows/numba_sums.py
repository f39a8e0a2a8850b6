"""The Numba kernel that takes a program's sums over the whole input."""

from __future__ import annotations

from psnode.codecs.rows.formula import FIRST_SUM, NORM, Program
from psnode.codecs.rows.numba_rows import NumbaRows, rooms_of
from psnode.codecs.rows.values import Kind, Span, Value


def sum_up(program: Program) -> list[str]:
    """Its lines. Sums of rows are kept for all rows, one float64 each, and then summed by trees."""
    rows = NumbaRows(program, "")
    rows.numbers([value.args[0] for value in program.sums])
    before = rows.taken()
    with rows.block():
        for place, value in enumerate(program.sums):
            if value.op != NORM:
                rows.put(f"found[{place}, row] = {_of_row(value.args[0], rows)}")
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
        "    for start in range(0, x.size, 512):",
        "        row, here = start // 512, min(512, x.size - start)",
        "        fetch_row(x, start + AHEAD)",
        "        v = source[start : start + 512]",
        "        if here < 512:",
        "            for i in range(here):",
        "                last[i] = v[i]",
        "            v = last",
        "        if not is_finite(v):",
        "            return False",
        *body,
        *_totals(program),
        "    return True",
    ]


def _totals(program: Program) -> list[str]:
    places = ((value.op == NORM, program.place_of_sum(value)) for value in program.sums)
    totals = (
        (place, "uncut(l2_norm(x, lanes), x)" if is_norm else f"tree_of(found[{place - FIRST_SUM}])") for is_norm, place in places
    )
    return [f"    tops.view(np.float64)[{place}] = {total}" for place, total in totals]


def _of_row(x: Value, rows: NumbaRows) -> str:
    """The expression of a row's part of a sum."""
    if x.span is Span.ROW:
        return rows.number(x)
    room = "v" if x.op == "input" else rows.room(x)
    return f"count_512({room}, here)" if x.kind is Kind.BOOL else f"row_sum({room}, here, lanes)"
