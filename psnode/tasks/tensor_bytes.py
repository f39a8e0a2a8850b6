"""Access to the bytes of tensors in their own memory, after which the tensors can still be resized.

Tensor.numpy() permanently marks a tensor's storage as not resizable. However, a model may have to resize its own buffers by
resize_ in a forward pass, as quantisation observers do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


class _Memory:
    """Memory of a tensor with NumPy's array interface.

    An array made from this object keeps the object and the tensor's storage alive.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = tensor.untyped_storage()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.nbytes,),
            "data": (tensor.data_ptr(), False),
        }


def memory_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor on the host as an array that shares its memory.

    The array is invalid after the tensor has been resized. Raises ValueError for any other tensor.
    """
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("only contiguous tensors on the host have their bytes in order in memory")
    return np.asarray(_Memory(tensor)) if tensor.numel() else np.empty(0, np.uint8)
