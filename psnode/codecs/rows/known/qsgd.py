"""Formula of the codec qsgd with buckets of 512."""

from __future__ import annotations

from typing import Any

from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.known.bucket_norms import ordinary
from psnode.codecs.rows.language import (
    LARGEST,
    ROW,
    clip,
    f32,
    f64,
    floor,
    i32,
    l2_norm,
    largest,
    minimum,
    random16,
    settle,
    u32,
    where,
)
from psnode.codecs.rows.packings import planes
from psnode.codecs.rows.values import Value


class QsgdRows(Known):
    """qsgd with buckets of 512. The arithmetic is in float32 if the norm is 0 or 2^-50 to 2^50, else in float64."""

    def to_fields(self, v: Value) -> Fields:
        s = self.codec.levels
        norm = f32(l2_norm(v)) if self.codec.norm == "l2" else largest(v)
        top = float(s * 2**16)
        near = clip(v * f32(top / f64(norm)), -top, top)
        far = clip(f64(v) * (top / f64(norm)), -top, top)
        zero = random16() + (s << 16)
        q = where(
            norm == 0,
            u32(s),
            where(ordinary(norm), settle(u32(i32(floor(near))) + zero, near), settle(u32(i32(floor(far))) + zero, far)),
        )
        return Fields(levels=u32(s), bucket=u32(ROW), norms=norm, codes=planes(q, (2 * s).bit_length()))

    def from_fields(self, levels: Value, bucket: Value, norms: Value, codes: Value) -> Value:
        s = self.codec.levels
        q = minimum(i32(codes) - s, s)
        far = f32(clip(f64(q) * f64(norms) / float(s), -LARGEST, LARGEST))
        return where(ordinary(norms) | (norms == 0), f32(q) * (norms / float(s)), far)

    @classmethod
    def expresses(cls, codec: Any) -> bool:
        return bool(codec.bucket == ROW and not codec.factors)
