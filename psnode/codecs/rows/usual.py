"""Programs without the branches that a row of N(0,1) values rarely takes, so that a kernel executes all of its text.

Every condition on a number of the row or the array is evaluated on one such row, and only the branch taken is kept. Two
branches are removed from the CUDA header: the branch for norms far from 1, and the branch for coordinates that 16 random bits
do not settle. The second occurs in one of 128 rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from psnode.codecs.rng import Key
from psnode.codecs.rows.formula import Column, Program
from psnode.codecs.rows.interpreter import Interpreted, RowEvaluation
from psnode.codecs.rows.language import ROW
from psnode.codecs.rows.values import Span, Value, below

_SELDOM = {  # exactly as in psnode/codecs/rows/cuda/rows.h
    "if (ANY(tie)) {": "if (false) {",
    "if (sum >= 0x1p-120 && sum <= 0x1p120) return": "return",
}


def usual(program: Program) -> Program:
    """Return a program that gives the same results as `program` for a row of N(0,1) values.

    Where a number of the row or the array chooses between operands, only the operand that such a row selects is kept.
    """
    x = np.random.default_rng(1).standard_normal(ROW).astype(np.float32)
    tops, key = program.of_input(ROW), np.array(Key.derive(1, "usual").words, np.uint64)
    Interpreted(program).survey(x, tops)
    Interpreted(program).sum_up(x, key, tops)
    found = RowEvaluation(x[None], 0, key, program, tops)
    found.know_sums()
    columns = (*program.of_array, *program.of_rows)
    numbers = {column.name: column.value for column in columns}
    ends = [*numbers.values(), program.packed.value, program.kept, program.decoded]
    for value in below([program.decoded]):
        if value.op == "field":
            found.known[value] = found.value(numbers[str(value.detail)])
    made = _decided(ends, found)
    return dataclasses.replace(
        program,
        of_array=tuple(Column(name, made[value]) for name, value in program.of_array),
        of_rows=tuple(Column(name, made[value]) for name, value in program.of_rows),
        packed=program.packed._replace(value=made[program.packed.value]),
        decoded=made[program.decoded],
        kept=made[program.kept],
    )


def _decided(ends: Sequence[Value], found: RowEvaluation) -> dict[Value, Value]:
    """Return the replacements of `ends` and of all values on which they depend."""
    made: dict[Value, Value] = {}
    for value in below(ends):
        args = [made[arg] for arg in value.args]
        if value.op == "where" and value.args[0].span is not Span.COORDINATE:
            made[value] = args[1] if bool(np.all(found.value(value.args[0]))) else args[2]
        elif all(new is old for new, old in zip(args, value.args, strict=True)):
            made[value] = value
        else:
            made[value] = Value(value.op, value.kind, args, value.span, value.detail)
    return made


def usual_text(text: str) -> str:
    """Return the complete source of the kernels, without the rare branches of the header."""
    for rare, instead in _SELDOM.items():
        if rare not in text:
            raise AssertionError(f"the kernels have no {rare!r}")
        text = text.replace(rare, instead)
    return text
