"""Names of the arrays that codecs work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

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
Parts = Sequence[tuple[int, Floats]]  # pieces of a vector, each with its place

Array = TypeVar("Array", bound=npt.NDArray[Any])


def readonly(array: Array) -> Array:
    """A view of `array` that cannot be written through: kernels are compiled for such inputs alone."""
    view = array.view()
    view.flags.writeable = False
    return view
