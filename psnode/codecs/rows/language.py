"""The words of a formula, beside Python's operators. docs/rows.md has them with examples.

Rules of floating point: every operation rounds as IEEE 754 has it, in the order that is written; nothing is contracted, nothing
flushed to zero. So bytes are equal on every processor.
"""

from __future__ import annotations

from psnode.codecs.rows.values import Dtype, Number, Span, Value, constant, pair
from psnode.errors import CodecSpecError

ROW = 512
LARGEST = 3.4028234663852886e38  # float32's


def f32(x: Value | Number) -> Value:
    """`x` rounded to float32."""
    return _cast(x, Dtype.F32)


def f64(x: Value | Number) -> Value:
    """`x` as float64, which is exact. Few processors are fast at it for every coordinate of a row."""
    return _cast(x, Dtype.F64)


def i32(x: Value | Number) -> Value:
    """`x` as int32: a real number within its range without its fraction; an uint32's bits."""
    return _cast(x, Dtype.I32)


def u32(x: Value | Number) -> Value:
    """`x` as uint32: an int32's bits, or 1 and 0 for true and false."""
    return _cast(x, Dtype.U32)


def bits(x: Value) -> Value:
    """The bits of a float32 as an uint32."""
    return Value("bits", Dtype.U32, (_of(x, Dtype.F32, "bits"),))


def from_bits(x: Value) -> Value:
    """The float32 whose bits are an uint32."""
    return Value("from_bits", Dtype.F32, (_of(x, Dtype.U32, "from_bits"),))


def where(condition: Value, yes: Value | Number, no: Value | Number) -> Value:
    """`yes` where the condition is true, else `no`. If the condition is a row's or an array's, one side alone is computed."""
    yes, no = pair(yes, no)
    return Value("where", yes.kind, (_of(condition, Dtype.BOOL, "where"), yes, no))


def minimum(a: Value | Number, b: Value | Number) -> Value:
    """`b` if it is below `a`, else `a`."""
    a, b = pair(a, b)
    return where(b < a, b, a)


def maximum(a: Value | Number, b: Value | Number) -> Value:
    """`b` if it is above `a`, else `a`."""
    a, b = pair(a, b)
    return where(b > a, b, a)


def clip(x: Value, low: Value | Number, high: Value | Number) -> Value:
    """`x`, but not below `low` and not above `high`."""
    return minimum(maximum(x, low), high)


def floor(x: Value) -> Value:
    """The largest whole number not above `x`, as a real one."""
    return Value("floor", x.kind, (_of(x, None, "floor"),))


def sqrt(x: Value) -> Value:
    """The square root."""
    return Value("sqrt", x.kind, (_of(x, None, "sqrt"),))


def tree_sum(x: Value) -> Value:
    """The sum of a row of float32: lane l of 64 adds coordinates l mod 64 in pairs of pairs, then the lanes 64 to 16 to 1."""
    return Value("tree_sum", Dtype.F32, (_of(x, Dtype.F32, "tree_sum"),), Span.ROW)


def l2_norm(x: Value) -> Value:
    """The L2 norm of a row of float32 as a float64, exact in range: as `tree_sum`, or in float64 where that leaves 2^+-120."""
    return Value("l2_norm", Dtype.F64, (_of(x, Dtype.F32, "l2_norm"),), Span.ROW)


def largest(x: Value) -> Value:
    """The largest magnitude in a row of float32."""
    return Value("largest", Dtype.F32, (_of(x, Dtype.F32, "largest"),), Span.ROW)


def given() -> Value:
    """A float32 of the row that is sent, and lies in its place before a processor encodes: no other runs such a formula."""
    return Value("given", Dtype.F32, span=Span.ROW)


def any_of(x: Value) -> Value:
    """True if a condition is true somewhere in the row."""
    return Value("any", Dtype.BOOL, (_of(x, Dtype.BOOL, "any_of"),), Span.ROW)


def largest_of_all(v: Value) -> Value:
    """The largest magnitude in the whole input."""
    return _of_input("largest_of_all", v)


def least_of_all(v: Value) -> Value:
    """The least value of the whole input; -0 is below 0."""
    return _of_input("least_of_all", v)


def greatest_of_all(v: Value) -> Value:
    """The greatest value of the whole input; -0 is below 0."""
    return _of_input("greatest_of_all", v)


def least_magnitude_of_all(v: Value) -> Value:
    """The least magnitude in the whole input that is not 0; 0 if all are."""
    return _of_input("least_magnitude_of_all", v)


def sum_of_all(x: Value) -> Value:
    """The sum over the whole input, a float64: of a float32 of every coordinate or of a number of every row.

    Rows are summed as by `tree_sum`, without overflow, and their sums, 512 at a time, by the same tree in float64. Coordinates
    beyond the last do not count.
    """
    if isinstance(x, Value) and x.kind.real and x.span is Span.ROW:
        return Value("sum_of_all", Dtype.F64, (f64(x),), Span.ARRAY)
    return Value("sum_of_all", Dtype.F64, (_of_coordinates(x, Dtype.F32, "sum_of_all"),), Span.ARRAY)


def l2_norm_of_all(v: Value) -> Value:
    """The L2 norm of the whole input, a float64: squares of a row as by `tree_sum`, the rows' sums one after the other.

    In float64, coordinate by coordinate, where that leaves 2^+-120.
    """
    if _of(v, Dtype.F32, "l2_norm_of_all").op != "input":
        raise CodecSpecError("l2_norm_of_all takes the input of encode itself")
    return Value("l2_norm_of_all", Dtype.F64, (v,), Span.ARRAY)


def count_of_all(condition: Value) -> Value:
    """Number of coordinates of the whole input that a condition holds for, an uint32."""
    return Value("count_of_all", Dtype.U32, (_of_coordinates(condition, Dtype.BOOL, "count_of_all"),), Span.ARRAY)


def size_of_all() -> Value:
    """Number of coordinates of the whole input, an uint32."""
    return Value("size_of_all", Dtype.U32, span=Span.ARRAY)


def l2_norm_of_bucket(v: Value, rows: int) -> Value:
    """The L2 norm of the bucket of `rows` rows that a coordinate lies in, a float64: rows as by `tree_sum`, one after the other.

    In float64, coordinate by coordinate, where that leaves 2^+-120. It goes with a packing of such buckets: `fitted`.
    """
    if _of(v, Dtype.F32, "l2_norm_of_bucket").op != "input":
        raise CodecSpecError("l2_norm_of_bucket takes the input of encode itself")
    return Value("l2_norm_of_bucket", Dtype.F64, (v,), Span.BUCKET, rows)


def size_of_bucket(rows: int) -> Value:
    """The coordinates of a bucket of `rows` rows, an uint32: the last one may have fewer."""
    return Value("size_of_bucket", Dtype.U32, span=Span.BUCKET, detail=rows)


def key_word(number: int) -> Value:
    """Word `number`, 0 to 3, of the key of encode's random bits. Where all four are sent, `from_fields` has these bits too."""
    if number not in range(4):
        raise CodecSpecError(f"a key has words 0 to 3, not {number!r}")
    return Value("key_word", Dtype.U32, span=Span.ARRAY, detail=number)


def place_in_row() -> Value:
    """The place of a coordinate in its row, 0 to 511, an uint32."""
    return Value("place_in_row", Dtype.U32, span=Span.COORDINATE)


def random16(period: int = ROW) -> Value:
    """16 random bits of a coordinate: the same wherever the formula names them.

    With a `period` of 32, 64, 128 or 256: those of coordinate i mod `period` of the row in the place of coordinate i's.
    """
    if period not in (32, 64, 128, 256, ROW):
        raise CodecSpecError(f"random bits are repeated after 32, 64, 128 or 256 coordinates, not {period!r}")
    return Value("random16", Dtype.U32, span=Span.COORDINATE, detail=period)


def coin() -> Value:
    """A fair coin of a coordinate, true or false: the same wherever the formula names it. Rows that need none draw none."""
    return Value("coin", Dtype.BOOL, span=Span.COORDINATE)


def settle(fixed: Value, exact: Value) -> Value:
    """floor(fixed / 2^16), where `fixed` is floor(exact) + a multiple of 2^16 + random16(); and one more, by up to 128 further
    random bits, where 16 were too few to tell. So the expectation is exactly exact / 2^16 + the multiple.
    """
    _of(exact, None, "settle")
    return Value("settle", Dtype.U32, (_of(fixed, Dtype.U32, "settle"), exact), Span.COORDINATE)


def stochastic(x: Value, lowest: int) -> Value:
    """`x` (in units of 2^-16) rounded at random to a whole number of 2^16, without bias, less `lowest`, which none is below."""
    return settle(u32(i32(floor(x))) + (-lowest << 16) + random16(), x)


def _cast(x: Value | Number, kind: Dtype) -> Value:
    if not isinstance(x, Value):
        return constant(x, kind)
    if x.kind is kind:
        return x
    if x.kind.real and kind is Dtype.U32:
        raise CodecSpecError("a real number becomes an uint32 by way of i32")
    if (x.kind is Dtype.BOOL and kind is not Dtype.U32) or kind is Dtype.BOOL:
        raise CodecSpecError(f"{x.kind.value} cannot be converted to {kind.value}")
    return Value("cast", kind, (x,))


def _of(x: Value, kind: Dtype | None, word: str) -> Value:
    """`x`, of `kind`, or of any real one. CodecSpecError."""
    if not isinstance(x, Value) or (x.kind is not kind if kind else not x.kind.real):
        found = x.kind.value if isinstance(x, Value) else type(x).__name__
        raise CodecSpecError(f"{word} takes {kind.value if kind else 'real numbers'}, not {found}")
    return x


def _of_coordinates(x: Value, kind: Dtype, word: str) -> Value:
    if _of(x, kind, word).span is not Span.COORDINATE:
        raise CodecSpecError(f"{word} takes {kind.value} of every coordinate, not {x!r}")
    return x


def _of_input(op: str, v: Value) -> Value:
    if _of(v, Dtype.F32, op).op != "input":
        raise CodecSpecError(f"{op} takes the input of encode itself")
    return Value(op, Dtype.F32, (v,), Span.ARRAY)
