"""Types of the arrays that codecs work on, and checks of arrays that callers pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from psnode.errors import CodecTypeError, CodecValueError

Floats = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]
Words = npt.NDArray[np.uint64]
Words32 = npt.NDArray[np.uint32]
Words16 = npt.NDArray[np.uint16]
Codes = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]  # symbols of an alphabet
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Indices = Int64s  # coordinates of a flat array
Shape = tuple[int, ...]
Parts = Sequence[tuple[int, Floats]]  # pieces of a vector, each with the index at which it starts

Array = TypeVar("Array", bound=npt.NDArray[Any])


def readonly(array: Array) -> Array:
    """Return a read-only view of `array`. Kernels are compiled for read-only inputs."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_floats(x: npt.ArrayLike, name: str) -> Floats:
    """Return `x` as a float32 numpy array in C order, copied only if necessary.

    `x`: an array of floats, a torch tensor of floats on the CPU, or a sequence of numbers. Values are rounded to the nearest
    float32. Values beyond its range become infinite, and codecs refuse infinite values. Raises CodecTypeError if `x` is
    anything else. `name` is the argument's name in the error.
    """
    if isinstance(x, np.ndarray) and x.dtype == np.float32:
        return np.asarray(x, order="C")
    try:
        found = np.asarray(_from_torch(x, name))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CodecTypeError(f"{name} is no array of real numbers: {' '.join(str(error).split())}") from error
    if found.dtype.kind not in ("f" if hasattr(x, "dtype") else "fiu"):
        remedy = f"give {name}.float()" if hasattr(x, "detach") else f"give np.asarray({name}, np.float32)"
        raise CodecTypeError(f"{name} must be floats, not {_named(x)}: {remedy}")
    with np.errstate(over="ignore"):
        return np.asarray(found, np.float32, order="C")


def _from_torch(x: Any, name: str) -> Any:
    """Return a torch tensor as a numpy array that shares the tensor's memory if possible. Return anything else unchanged."""
    if not hasattr(x, "detach"):
        return x
    if x.device.type != "cpu":
        raise CodecTypeError(f"{name} is a tensor on {x.device}: give {name}.cpu()")
    tensor = x.detach()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()  # numpy has no bfloat16


def in_c_order(x: Floats, name: str) -> Floats:
    """Return `x` in C order, copied only if necessary. Raises CodecTypeError unless it is a float32 numpy array."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        raise _not_float32(x, name)
    return np.asarray(x, order="C")


def _not_float32(x: object, name: str) -> CodecTypeError:
    """Return the error for an argument that is not float32 and must not be converted, because the caller writes to it."""
    remedy = f": give {name}.detach().numpy(), which shares its memory" if hasattr(x, "detach") else ""
    return CodecTypeError(f"{name} must be a float32 numpy array, not {_named(x)}{remedy}")


def _named(x: object) -> str:
    """Return a description, for an error, of an argument that was refused."""
    if isinstance(x, np.ndarray):
        return f"an array of {x.dtype}"
    return f"{type(x).__name__}{f' of {x.dtype}' if hasattr(x, 'dtype') else ''}"


def check_error(error: Floats, shape: Shape) -> None:
    """Check that `error` is float32, writable and of the shape of x. Raises CodecTypeError, CodecValueError."""
    in_c_order(error[:0] if isinstance(error, np.ndarray) and error.ndim else error, "error")
    if error.shape != shape:
        raise CodecValueError(f"error has shape {error.shape}, x has {shape}: they must be equal")
    if not error.flags.writeable:
        raise CodecValueError("error is read-only")


def check_target(array: Floats, name: str) -> None:
    """Check that `array` is float32, contiguous and writable. Raises CodecTypeError, CodecValueError."""
    if in_c_order(array, name) is not array:
        raise CodecValueError(f"{name} is not contiguous")
    if not array.flags.writeable:
        raise CodecValueError(f"{name} is read-only")


def check_parts(parts: Parts, size: int) -> None:
    """Check that `parts` are flat, contiguous, ascending, disjoint and within `size` coordinates.

    Raises CodecTypeError or CodecValueError.
    """
    end = 0
    for place, part in parts:
        if in_c_order(part, "a part") is not part or part.ndim != 1:
            raise CodecValueError("a part is not flat and contiguous")
        if place < end or place + part.size > size:
            raise CodecValueError(f"a part of {part.size} values at {place} overlaps another, or does not fit into {size}")
        end = place + part.size


def checked_buffer(out: Bytes, limit: int) -> Bytes:
    """Return `out` if it can hold a payload of up to `limit` bytes. Raises CodecTypeError, CodecValueError."""
    if not isinstance(out, np.ndarray) or out.dtype != np.uint8:
        raise CodecTypeError("out of encode must be a uint8 numpy array")
    if out.ndim != 1 or not out.flags.c_contiguous or not out.flags.writeable or out.ctypes.data % 4:
        raise CodecValueError("out of encode must be 1-D, contiguous, writable and start at a multiple of 4 bytes")
    if out.size < limit:
        raise CodecValueError(f"out of encode has {out.size} bytes, needs max_nbytes(shape) = {limit}")
    return out


def checked_target(out: Floats, shape: Shape) -> Floats:
    """Return the float32 array `out` in the shape `shape`. It must have this shape or be flat.

    Raises CodecTypeError, CodecValueError.
    """
    if not isinstance(out, np.ndarray) or out.dtype != np.float32:
        raise _not_float32(out, "out")
    if out.shape not in (shape, (math.prod(shape),)):
        raise CodecValueError(f"out has shape {out.shape}, the payload has {shape}: give that shape or the flat one")
    if not out.flags.c_contiguous or not out.flags.writeable:
        raise CodecValueError("out must be contiguous and writable")
    return out.reshape(shape)
