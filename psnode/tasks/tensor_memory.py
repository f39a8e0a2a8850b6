"""Bytes of tensors in their own memory, which can still be resized afterwards.

Tensor.numpy() marks a tensor's storage as not resizable for ever, and a model may size its own buffers: resize_ in a forward
pass, as observers of quantisation do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch


class _Memory:
    """Memory of a tensor with NumPy's array interface. An array made from it keeps this object, and so the tensor's storage."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._storage = tensor.untyped_storage()
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.nbytes,),
            "data": (tensor.data_ptr(), False),
        }


def memory_of(tensor: torch.Tensor) -> npt.NDArray[np.uint8]:
    """Return the bytes of a contiguous tensor on the host, which share its memory. Invalid once the tensor is resized."""
    if not tensor.is_contiguous() or tensor.device.type != "cpu":
        raise ValueError("only contiguous tensors on the host have their bytes in order in memory")
    return np.asarray(_Memory(tensor)) if tensor.numel() else np.empty(0, np.uint8)
