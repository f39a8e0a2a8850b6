"""Noticing that a model is about to use a weight, whatever the code of its layers looks like.

Forward hooks of modules miss weights that are used without a call of the module that owns them (tied weights,
nn.MultiheadAttention's output projection). Every function of torch that Python calls can be watched instead: a weight
is first used when it, or a view of its memory, is first an argument. What never passes through Python, scripted and
compiled modules, cannot be watched: `watchable` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from psnode.worker.arrivals import Arrivals


def watchable(model: nn.Module) -> bool:
    """Whether all that `model` computes with passes through functions of torch called from Python."""
    return not any(
        isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule" for module in model.modules()
    )


class FirstUse(TorchFunctionMode):
    """While it is entered, every function waits for the `weights` among its arguments.

    `weights`: the flat vector that all parameters are views of.
    """

    def __init__(self, arrivals: Arrivals, weights: torch.Tensor) -> None:
        super().__init__()
        self._arrivals = arrivals
        self._memory = weights.untyped_storage().data_ptr()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call `func`, once the weights that it is given are there. Reading an attribute is no use of a weight's values."""
        if self._arrivals.missing and getattr(func, "__name__", "") not in ("__get__", "__set__"):
            for tensor in _tensors((args, *(kwargs or {}).values())):
                if tensor.layout is torch.strided and tensor.untyped_storage().data_ptr() == self._memory:
                    self._arrivals.require(*_extent(tensor))
        return func(*args, **(kwargs or {}))


def _tensors(values: tuple[Any, ...] | list[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)


def _extent(tensor: torch.Tensor) -> tuple[int, int]:
    """The first coordinate of the flat vector that `tensor` covers, and one past the last."""
    if not tensor.numel():
        return 0, 0
    start = int(tensor.storage_offset())
    return start, start + 1 + sum(int((n - 1) * stride) for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
