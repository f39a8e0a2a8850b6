"""Functions for formulas, in addition to Python's operators. docs/rows.md lists them with examples.

Every floating-point operation rounds according to IEEE 754, in the order in which the formula is written. Operations are not
contracted (fused), and subnormal numbers are not flushed to zero. The bytes are therefore equal on all processors.
"""

from __future__ import annotations

from psnode.codecs.rows.values import Dtype, Number, Span, Value, constant, pair
from psnode.errors import CodecSpecError

ROW = 512
LARGEST = 3.4028234663852886e38  # the largest finite float32


def f32(x: Value | Number) -> Value:
    """Return `x` rounded to float32."""
    return _cast(x, Dtype.F32)


def f64(x: Value | Number) -> Value:
    """Return `x` as float64, without rounding. Float64 arithmetic on every coordinate of a row is slow on most devices."""
    return _cast(x, Dtype.F64)


def i32(x: Value | Number) -> Value:
    """Return `x` as int32. A real number in the range of int32 loses its fraction, and a uint32 keeps its bits."""
    return _cast(x, Dtype.I32)


def u32(x: Value | Number) -> Value:
    """Return `x` as uint32. An int32 keeps its bits, and true and false become 1 and 0."""
    return _cast(x, Dtype.U32)


def bits(x: Value) -> Value:
    """Return the bits of a float32 as a uint32."""
    return Value("bits", Dtype.U32, (_of(x, Dtype.F32, "bits"),))


def from_bits(x: Value) -> Value:
    """Return the float32 whose bits are the uint32 `x`."""
    return Value("from_bits", Dtype.F32, (_of(x, Dtype.U32, "from_bits"),))


def where(condition: Value, yes: Value | Number, no: Value | Number) -> Value:
    """Return `yes` where the condition is true, else `no`.

    If the condition is a number of a row or of the array, and the sides are values of coordinates, kernels compute only the
    chosen side.
    """
    yes, no = pair(yes, no)
    return Value("where", yes.kind, (_of(condition, Dtype.BOOL, "where"), yes, no))


def minimum(a: Value | Number, b: Value | Number) -> Value:
    """Return `b` if it is below `a`, else `a`."""
    a, b = pair(a, b)
    return where(b < a, b, a)


def maximum(a: Value | Number, b: Value | Number) -> Value:
    """Return `b` if it is above `a`, else `a`."""
    a, b = pair(a, b)
    return where(b > a, b, a)


def clip(x: Value, low: Value | Number, high: Value | Number) -> Value:
    """Return `x` limited to the range from `low` to `high`."""
    return minimum(maximum(x, low), high)


def floor(x: Value) -> Value:
    """Return the largest integer that is at most `x`, as a floating-point number of the same kind."""
    return Value("floor", x.kind, (_of(x, None, "floor"),))


def sqrt(x: Value) -> Value:
    """Return the square root of `x`."""
    return Value("sqrt", x.kind, (_of(x, None, "sqrt"),))


def tree_sum(x: Value) -> Value:
    """Return the sum of a row of float32, which is added in a fixed order.

    Lane l (0 to 63) adds the eight coordinates l, l + 64, ... in pairs, then pairs of pairs. The 64 lanes are then reduced to
    16 in the same way (l, l + 16, ...), and these to one by adding neighbours in pairs.
    """
    return Value("tree_sum", Dtype.F32, (_of(x, Dtype.F32, "tree_sum"),), Span.ROW)


def l2_norm(x: Value) -> Value:
    """Return the L2 norm of a row of float32, as a float64.

    The squares are added as `tree_sum` does. If their sum is outside 2^-120 to 2^120, they are added in float64 instead.
    """
    return Value("l2_norm", Dtype.F64, (_of(x, Dtype.F32, "l2_norm"),), Span.ROW)


def largest(x: Value) -> Value:
    """Return the largest magnitude in a row of float32."""
    return Value("largest", Dtype.F32, (_of(x, Dtype.F32, "largest"),), Span.ROW)


def given() -> Value:
    """Return a float32 per row that is sent but not computed: the caller writes it to the body before encoding.

    A formula that calls this function runs on CPUs only.
    """
    return Value("given", Dtype.F32, span=Span.ROW)


def parameter(number: Value) -> Value:
    """Return a constant that kernels read at run time. Codecs that differ only in such constants share their kernels.

    `number`: an f32, f64, i32 or u32, as in `parameter(f32(0.5))`. A formula has at most 4 parameters. `from_fields` gets them
    only as fields.
    """
    if not isinstance(number, Value) or number.op != "constant" or number.kind is Dtype.BOOL:
        raise CodecSpecError(f"a parameter is a constant such as f32(0.5), not {number!r}")
    return Value("parameter", number.kind, span=Span.ARRAY, detail=number.detail)


def any_of(x: Value) -> Value:
    """Return true if the condition `x` holds for at least one coordinate of the row."""
    return Value("any", Dtype.BOOL, (_of(x, Dtype.BOOL, "any_of"),), Span.ROW)


def largest_of_all(v: Value) -> Value:
    """Return the largest magnitude in the whole input."""
    return _of_input("largest_of_all", v)


def least_of_all(v: Value) -> Value:
    """Return the least value in the whole input. -0 counts as below 0."""
    return _of_input("least_of_all", v)


def greatest_of_all(v: Value) -> Value:
    """Return the greatest value in the whole input. -0 counts as below 0."""
    return _of_input("greatest_of_all", v)


def least_magnitude_of_all(v: Value) -> Value:
    """Return the least nonzero magnitude in the whole input, or 0 if all values are 0."""
    return _of_input("least_magnitude_of_all", v)


def sum_of_all(x: Value) -> Value:
    """Return the sum over the whole input, as a float64, of a float32 per coordinate or of a number per row.

    Rows are summed as `tree_sum` does, but without overflow. The sums of rows are added 512 at a time by the same tree in
    float64. The zeros that pad the last row do not count.
    """
    if isinstance(x, Value) and x.kind.real and x.span is Span.ROW:
        return Value("sum_of_all", Dtype.F64, (f64(x),), Span.ARRAY)
    return Value("sum_of_all", Dtype.F64, (_of_coordinates(x, Dtype.F32, "sum_of_all"),), Span.ARRAY)


def l2_norm_of_all(v: Value) -> Value:
    """Return the L2 norm of the whole input, as a float64.

    The squares of each row are added as `tree_sum` does, and the sums of the rows are added one after another. If the total is
    outside 2^-120 to 2^120, all squares are added one after another in float64 instead.
    """
    if _of(v, Dtype.F32, "l2_norm_of_all").op != "input":
        raise CodecSpecError("l2_norm_of_all takes the input of encode itself")
    return Value("l2_norm_of_all", Dtype.F64, (v,), Span.ARRAY)


def count_of_all(condition: Value) -> Value:
    """Return the number of coordinates of the whole input for which the condition holds, as a uint32."""
    return Value("count_of_all", Dtype.U32, (_of_coordinates(condition, Dtype.BOOL, "count_of_all"),), Span.ARRAY)


def size_of_all() -> Value:
    """Return the number of coordinates of the whole input, as a uint32."""
    return Value("size_of_all", Dtype.U32, span=Span.ARRAY)


def l2_norm_of_bucket(v: Value, rows: int) -> Value:
    """Return the L2 norm of a coordinate's bucket, which has `rows` rows, as a float64.

    The squares of each row are added as `tree_sum` does, and the sums of the rows are added one after another. If the total is
    outside 2^-120 to 2^120, all squares are added one after another in float64 instead. The packing must be `fitted`, with
    buckets of `rows` rows.
    """
    if _of(v, Dtype.F32, "l2_norm_of_bucket").op != "input":
        raise CodecSpecError("l2_norm_of_bucket takes the input of encode itself")
    return Value("l2_norm_of_bucket", Dtype.F64, (v,), Span.BUCKET, rows)


def size_of_bucket(rows: int) -> Value:
    """Return the number of coordinates in a bucket of `rows` rows, as a uint32.

    The last bucket may have fewer than the others.
    """
    return Value("size_of_bucket", Dtype.U32, span=Span.BUCKET, detail=rows)


def key_word(number: int) -> Value:
    """Return word `number` (0 to 3) of the key of encode's random bits, as a uint32.

    If all four words are sent, in order and without a gap, `from_fields` may also use `random16`.
    """
    if number not in range(4):
        raise CodecSpecError(f"a key has words 0 to 3, not {number!r}")
    return Value("key_word", Dtype.U32, span=Span.ARRAY, detail=number)


def place_in_row() -> Value:
    """Return the position of a coordinate in its row, 0 to 511, as a uint32."""
    return Value("place_in_row", Dtype.U32, span=Span.COORDINATE)


def random16(period: int = ROW) -> Value:
    """Return 16 random bits for each coordinate, as a uint32. All calls with the same `period` return the same bits.

    With a `period` of 32, 64, 128 or 256, coordinate i of a row has the bits of coordinate i mod `period`.
    """
    if period not in (32, 64, 128, 256, ROW):
        raise CodecSpecError(f"random bits are repeated after 32, 64, 128 or 256 coordinates, not {period!r}")
    return Value("random16", Dtype.U32, span=Span.COORDINATE, detail=period)


def coin() -> Value:
    """Return a fair coin for each coordinate, true or false. All calls of coin in a formula return the same coins.

    For rows that use no coin, no random bits are drawn for coins.
    """
    return Value("coin", Dtype.BOOL, span=Span.COORDINATE)


def settle(fixed: Value, exact: Value) -> Value:
    """Return floor(fixed / 2^16), or this number plus 1 if 16 random bits do not settle the rounding and more bits round up.

    `fixed` must be floor(exact) + m 2^16 + random16(), with an integer m. If the low 16 bits of `fixed` are all ones, up to 128
    further random bits decide whether 1 is added. The expected value of the result is exact / 2^16 + m.
    """
    _of(exact, None, "settle")
    return Value("settle", Dtype.U32, (_of(fixed, Dtype.U32, "settle"), exact), Span.COORDINATE)


def stochastic(x: Value, lowest: int) -> Value:
    """Return `x` / 2^16 rounded at random to an integer, without bias, minus `lowest`.

    No rounded value may be below `lowest`.
    """
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
    """Return `x` if it has the kind `kind` (None stands for f32 or f64). Raise CodecSpecError if it has another kind."""
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
