"""Codecs as formulas over rows of 512 values (docs/rows.md).

One formula for encode and one for decode. An interpreter in NumPy, kernels generated for Numba and CUDA text give the same bytes.
A codec of one's own derives from RowCodec; psnode.codecs.rows.known has the formulas of psnode's codecs.
"""

from psnode.codecs.rows.codec import RowCodec
from psnode.codecs.rows.formula import Fields
from psnode.codecs.rows.language import (
    any_of,
    bits,
    clip,
    coin,
    count_of_all,
    f32,
    f64,
    floor,
    from_bits,
    greatest_of_all,
    i32,
    l2_norm,
    l2_norm_of_all,
    largest,
    largest_of_all,
    least_magnitude_of_all,
    least_of_all,
    maximum,
    minimum,
    random16,
    settle,
    size_of_all,
    sqrt,
    stochastic,
    sum_of_all,
    tree_sum,
    u32,
    where,
)
from psnode.codecs.rows.packings import halves, planes, signs, sparse, trits
from psnode.codecs.rows.values import Value

__all__ = [
    "Fields",
    "RowCodec",
    "Value",
    "any_of",
    "bits",
    "clip",
    "coin",
    "count_of_all",
    "f32",
    "f64",
    "floor",
    "from_bits",
    "greatest_of_all",
    "halves",
    "i32",
    "l2_norm",
    "l2_norm_of_all",
    "largest",
    "largest_of_all",
    "least_magnitude_of_all",
    "least_of_all",
    "maximum",
    "minimum",
    "planes",
    "random16",
    "settle",
    "signs",
    "size_of_all",
    "sparse",
    "sqrt",
    "stochastic",
    "sum_of_all",
    "tree_sum",
    "trits",
    "u32",
    "where",
]
