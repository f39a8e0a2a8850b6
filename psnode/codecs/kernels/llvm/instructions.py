"""Conversion of a Python function of values to machine code inside a kernel.

A function decorated with `instructions` computes with numbers, and with vectors of 16, 32 or 64 numbers. When a kernel that calls
the function is compiled, the function is run once, with a `RuntimeValue` for every number and an `Array` for every array. Its
operations on them become machine code: `low + 1` is an addition in all lanes. `plain` runs the same function on NumPy numbers
and arrays.

This is needed because Numba itself never turns a loop into operations on 16-bit lanes or on masks. LLVM maps the vectors to the
vectors of the processor.
"""

from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_args, get_origin, get_type_hints

import numpy as np
from numba import types
from numba.core.errors import TypingError
from numba.core.imputils import impl_ret_borrowed
from numba.core.typing.npydecl import parse_dtype
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array
from numba.np.numpy_support import as_dtype

from psnode.codecs.kernels.llvm.runtime_values import Array, RuntimeValue, has

F = TypeVar("F", bound=Callable[..., Any])

_HINTS = {int: types.intp, bool: types.boolean, type(None): types.void} | {
    kind: getattr(types, kind.__name__) for kind in (np.int32, np.uint16, np.uint32, np.uint64, np.float32, np.float64)
}
_WIDE = '"prefer-vector-width"="512"'


def _numba(hint: Any, given: Any = None) -> Any:
    """Return Numba's type for the annotation of a number or of a tuple of numbers. For arrays, return the type `given`."""
    if get_origin(hint) is tuple:
        return types.BaseTuple.from_types([_HINTS[word] for word in get_args(hint)])  # type: ignore[no-untyped-call]
    return _HINTS.get(hint, given)


def _argument(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if isinstance(kind, types.Array):
        return Array(builder, context.make_array(kind)(context, builder, value).data, as_dtype(kind.dtype))
    if isinstance(kind, types.UniTuple):
        return tuple(RuntimeValue(builder, builder.extract_value(value, i), as_dtype(kind.dtype)) for i in range(kind.count))
    return RuntimeValue(builder, value, as_dtype(kind))


def _result(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    if value is None:
        return context.get_dummy_value()
    if isinstance(value, tuple):
        return context.make_tuple(builder, kind, [_result(context, builder, *each) for each in zip(kind, value, strict=True)])
    return value.value if isinstance(value, RuntimeValue) else context.get_constant(kind, np.asarray(value).item())


def instructions(function: F) -> F:
    """Return `function`, which computes with values, in a form that kernels can call.

    Its annotations must give the types of numbers and of the result.
    """
    hints = get_type_hints(function)
    names = inspect.signature(function).parameters

    def typed(typing: Any, *given: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            values = [_argument(context, builder, *each) for each in zip(signature.args, arguments, strict=True)]
            with np.errstate(all="ignore"):  # numbers that are known now are computed now
                result = function(*values)
            return _result(context, builder, signature.return_type, result)

        return _numba(hints["return"])(*(_numba(hints[name], kind) for name, kind in zip(names, given, strict=True))), generate

    first = inspect.Parameter("typing", inspect.Parameter.POSITIONAL_ONLY)
    typed.__signature__ = inspect.Signature([first, *names.values()])  # type: ignore[attr-defined]
    typed.__name__, typed.__doc__, typed.__module__ = function.__name__, function.__doc__, function.__module__
    return cast(F, _paired(typed, function))


def _paired(typed: Any, equivalent: Callable[..., Any]) -> Any:
    """Return Numba's intrinsic for the typing function `typed`, with the function on NumPy values attached as `equivalent`."""
    compiled: Any = intrinsic(typed)
    compiled.equivalent = equivalent
    return compiled


def plain(compiled: F) -> F:
    """Return the function for NumPy numbers and arrays. It gives the same bits, and writes the same bytes, as in a kernel."""

    def run(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return cast(Any, compiled).equivalent(*arguments)

    return cast(F, run)


def _wide(typing: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if has("avx512vbmi2") and not has("prefer-256-bit"):
            set.add(builder.function.attributes, _WIDE)  # llvmlite knows attributes with a value only by their text
        return context.get_dummy_value()

    return types.void(), generate


def _floats_at(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), generate  # type: ignore[no-untyped-call]


def _viewed(typing: Any, array: Any, dtype: Any) -> Any:
    made = types.Array(parse_dtype(dtype), 1, "C", readonly=not array.mutable)  # type: ignore[call-overload,no-untyped-call]
    if array.ndim != 1 or array.layout != "C":
        raise TypingError(f"a view takes one contiguous dimension, not {array}")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, found = context.make_array(array)(context, builder, arguments[0]), context.make_array(made)(context, builder)
        old, new = (context.get_abi_sizeof(context.get_data_type(kind.dtype)) for kind in (array, made))
        size = builder.udiv(builder.mul(source.nitems, source.nitems.type(old)), source.nitems.type(new))
        data = builder.bitcast(source.data, found.data.type)
        strides = [source.nitems.type(new)]
        populate_array(found, data, [size], strides, new, source.meminfo, source.parent)  # type: ignore[no-untyped-call]
        return impl_ret_borrowed(context, builder, made, found._getvalue())  # type: ignore[no-untyped-call]

    return made(array, dtype), generate


def _numpy_view(array: Any, dtype: Any) -> Any:
    whole = array.nbytes // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
    return array.view(np.uint8)[:whole].view(dtype)


# Let LLVM use vectors of 512 bits in the calling function, on processors that they do not slow down.
wide = cast(Callable[[], None], _paired(_wide, lambda: None))
# The bytes of an array as numbers of another type, like ndarray.view, for which Numba would compile a function in every process.
# Bytes after the last whole number are left out.
viewed = cast(Callable[[Any, Any], Any], _paired(_viewed, _numpy_view))
# A pointer to the float32 at an address, for `numba.carray`.
floats_at = cast(Callable[[int], Any], _paired(_floats_at, lambda at: ctypes.cast(at, ctypes.POINTER(ctypes.c_float))))
