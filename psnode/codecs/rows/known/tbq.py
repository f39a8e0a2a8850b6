"""Formula of the codec tbq."""

from __future__ import annotations

from psnode.codecs.kernels.tbq import SHARE
from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.known.base import Known
from psnode.codecs.rows.language import f32, f64, i32, l2_norm_of_all, parameter, size_of_all, sqrt, u32, where
from psnode.codecs.rows.packings import sparse
from psnode.codecs.rows.values import Value


class TbqRows(Known):
    """tbq: values of at least tau become tau, values of at most -tau become -tau, and all others 0.

    If tau is 0, nothing is sent.
    """

    def to_fields(self, v: Value) -> Fields:
        if self.codec.tau is None:
            tau = f32(l2_norm_of_all(v) / sqrt(f64(size_of_all())) * SHARE)
        else:
            tau = parameter(f32(self.codec.tau))
        digits = u32(v >= tau) + 1 - u32(v <= -tau)
        return Fields(tau=tau, digits=sparse(where(tau == 0, u32(1), digits)))

    def from_fields(self, tau: Value, digits: Value) -> Value:
        return f32(i32(digits) - 1) * tau
