"""A codec of your own as two formulas: signed levels of a row's largest magnitude, rounded at random without bias.

    psnode train --local 2 --codec examples/row_codec.py:Levels --feedback ef --max-steps 100
    psnode bench codecs --codec examples/row_codec.py:Levels:levels=31
    psnode codecs examples/row_codec.py:Levels --source numba

The formulas describe how a row of 512 values is coded and decoded, and psnode makes kernels of them. docs/rows.md explains the
words of the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

from psnode.codecs.bounds import check_integer
from psnode.codecs.rows import Fields, RowCodec, Value, clip, f32, f64, i32, largest, planes, stochastic, where
from psnode.codecs.traits import Traits


@dataclass(frozen=True, repr=False)
class Levels(RowCodec):
    """A codec of rows. `levels`: the number of magnitudes above 0, from 1 to 127.

    A row whose largest magnitude is below 2^-100 becomes zeros.
    """

    levels: int = 7

    id = "levels"
    number = 193
    traits = Traits(unbiased=True)

    def __post_init__(self) -> None:
        check_integer(self, "levels", 1, 127)

    def to_fields(self, v: Value) -> Fields:
        top, unit = largest(v), self.levels * 65536.0
        top = where(top < 2.0**-100, 0.0, top)
        scaled = clip(v * where(top == 0, 0.0, f32(unit / f64(top))), -unit, unit)
        return Fields(top=top, codes=planes(stochastic(scaled, -self.levels), (2 * self.levels).bit_length()))

    def from_fields(self, top: Value, codes: Value) -> Value:
        return f32(i32(codes) - self.levels) * (top / self.levels)
