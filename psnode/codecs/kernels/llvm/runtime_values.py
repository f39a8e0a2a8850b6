"""Numbers, vectors and arrays whose values are known only when the program runs, and the features of the processor.

The operators of these values give the same bits as the operators of NumPy arrays of the same dtype.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core.registry import cpu_target

BOOL = np.dtype(bool)
I1, I8, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 32, 64))


@cache
def processor() -> tuple[str, str]:
    """Return the name and the features (separated by commas) of the processor that Numba compiles for, in LLVM's terms."""
    _, name, features = cpu_target.target_context.codegen().magic_tuple()
    return name, features


@cache
def has(feature: str) -> bool:
    """Return True if the processor that Numba compiles for has `feature`, named as in LLVM."""
    return f"+{feature}" in processor()[1].split(",")


UNASKED = ("znver1", "znver2", "znver3", "znver4")  # processors, by LLVM's names, on which kernels do not prefetch


@cache
def wants_hints() -> bool:
    """Return True if kernels should prefetch.

    AMD's Zen 4 fetches memory in time without hints, and prefetching slows it down. Earlier Zen processors are assumed to
    behave like Zen 4. Prefetching speeds up Zen 5 about as much as it slows down Zen 4 (docs/results/2026-11-24-processors.md,
    2026-11-25-processors.md).
    """
    return processor()[0] not in UNASKED


@cache
def rounds_once() -> bool:
    """Return True if the processor has an instruction for a * b + c that rounds only once."""
    return has("fma") or bool(cpu_target.target_context.codegen().magic_tuple()[0].startswith("aarch64"))


def _operation(name: str, signed: str = "", constant_first: bool = False) -> Any:
    def apply(self: RuntimeValue, other: Any) -> RuntimeValue:
        chosen = signed if signed and self.dtype.kind == "i" else name
        method = getattr(self.builder, f"f{chosen}" if self.dtype.kind == "f" else chosen)
        operands = self.value, self.operand(other)
        return RuntimeValue(self.builder, method(*(reversed(operands) if constant_first else operands)), self.dtype)

    return apply


def _comparison(relation: str) -> Any:
    def apply(self: RuntimeValue, other: Any) -> RuntimeValue:
        builder = self.builder
        method = {"i": builder.icmp_signed, "u": builder.icmp_unsigned, "f": builder.fcmp_ordered}[self.dtype.kind]
        if self.dtype.kind == "f" and relation == "!=":
            method = builder.fcmp_unordered  # a NaN differs from every number
        return RuntimeValue(builder, method(relation, self.value, self.operand(other)), BOOL)

    return apply


class RuntimeValue:
    """A number, or a vector of numbers, whose value is known only when the program runs."""

    __array_ufunc__ = None  # NumPy leaves operators with an array to this class

    def __init__(self, builder: Any, value: Any, dtype: Any) -> None:
        self.builder, self.value, self.dtype = builder, value, np.dtype(dtype)

    def operand(self, other: Any) -> Any:
        """Return `other` as an operand of this value.

        `other` is another value, an array of constants, or one constant, which is put in every lane.
        """
        if isinstance(other, RuntimeValue):
            return other.value
        kind = self.value.type
        lanes = getattr(kind, "count", 0)
        if lanes:
            return ir.Constant(kind, np.broadcast_to(other, lanes).tolist())
        return ir.Constant(kind, float(other) if self.dtype.kind == "f" else int(other))

    __add__ = __radd__ = _operation("add")
    __sub__, __rsub__ = _operation("sub"), _operation("sub", constant_first=True)
    __mul__ = __rmul__ = _operation("mul")
    __truediv__, __rtruediv__ = _operation("div"), _operation("div", constant_first=True)
    __and__ = __rand__ = _operation("and_")
    __or__ = __ror__ = _operation("or_")
    __xor__ = __rxor__ = _operation("xor")
    __lshift__ = _operation("shl")
    __rshift__ = _operation("lshr", signed="ashr")
    __lt__, __le__ = _comparison("<"), _comparison("<=")
    __gt__, __ge__ = _comparison(">"), _comparison(">=")
    __eq__, __ne__ = _comparison("=="), _comparison("!=")
    __hash__ = None  # type: ignore[assignment]

    def __neg__(self) -> RuntimeValue:
        if self.dtype.kind == "f":
            return RuntimeValue(self.builder, self.builder.fneg(self.value), self.dtype)
        return RuntimeValue(self.builder, self.builder.sub(self.operand(0), self.value), self.dtype)

    def __invert__(self) -> RuntimeValue:
        return RuntimeValue(self.builder, self.builder.not_(self.value), self.dtype)

    def __abs__(self) -> RuntimeValue:
        """Return the magnitude of a floating-point number."""
        return RuntimeValue(self.builder, call(self.builder, "fabs", self.value.type, self.value), self.dtype)

    def view(self, dtype: Any) -> RuntimeValue:
        """Return the same bits as numbers of another type with the same size."""
        return RuntimeValue(self.builder, self.builder.bitcast(self.value, like(self.value.type, dtype)), dtype)

    def astype(self, dtype: Any) -> RuntimeValue:
        """Return the numbers converted to another type. Floating-point numbers lose their fraction when they become integers."""
        goal = np.dtype(dtype)
        if self.dtype.kind in "iu" and goal.kind in "iu" and self.dtype.itemsize == goal.itemsize:
            return RuntimeValue(self.builder, self.value, goal)
        change = getattr(self.builder, self._conversion(goal))
        return RuntimeValue(self.builder, change(self.value, like(self.value.type, goal)), goal)

    def _conversion(self, goal: Any) -> str:
        """Return the name of LLVM's instruction that converts this value to the type `goal`."""
        wider = goal.itemsize > self.dtype.itemsize or self.dtype == BOOL
        if self.dtype.kind == "f":
            if goal.kind == "f":
                return "fpext" if wider else "fptrunc"
            return "fptosi" if goal.kind == "i" else "fptoui"
        if goal.kind == "f":
            return "sitofp" if self.dtype.kind == "i" else "uitofp"
        return ("sext" if self.dtype.kind == "i" else "zext") if wider else "trunc"


class Array:
    """An array whose contents are known only when the program runs."""

    def __init__(self, builder: Any, data: Any, dtype: Any) -> None:
        self.builder, self.data, self.dtype = builder, data, np.dtype(dtype)

    def address(self, start: Any, kind: Any) -> Any:
        """Return the address of element `start`, as a pointer to the LLVM type `kind`."""
        index = start.value if isinstance(start, RuntimeValue) else ir.Constant(I64, start)
        return self.builder.bitcast(self.builder.gep(self.data, [index]), kind.as_pointer())


def element(dtype: Any) -> Any:
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return ir.FloatType() if kind.itemsize == 4 else ir.DoubleType()
    return I1 if kind == BOOL else ir.IntType(8 * kind.itemsize)


def like(kind: Any, dtype: Any) -> Any:
    return ir.VectorType(element(dtype), kind.count) if isinstance(kind, ir.VectorType) else element(dtype)


def call(builder: Any, name: str, result: Any, *arguments: Any, overloaded: bool = True) -> Any:
    """Return the result of LLVM's function `name`. If `overloaded`, its full name includes the type of its first argument."""
    kind = arguments[0].type
    lanes = f"v{kind.count}" if isinstance(kind, ir.VectorType) else ""
    full = f"llvm.{name}.{lanes}{getattr(kind, 'element', kind).intrinsic_name}" if overloaded else f"llvm.{name}"
    function = builder.module.globals.get(full)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [argument.type for argument in arguments]), full)
    return builder.call(function, arguments)
