"""Detection that a model is about to use a weight, for any code in its layers.

There are three mechanisms, each of which catches uses that the other two miss. They watch

* every operator of torch's dispatcher, whether called from Python, from TorchScript, or below torch.vmap;
* every method of a tensor that gives access to its memory: data_ptr(), numpy(), DLPack, __cuda_array_interface__;
* every call of a module that owns parameters, since a custom kernel in the module may use a weight.

Code that all three miss (compiled graphs, CUDA graphs) is found before the first step (psnode.worker.inspection).

The first two mechanisms are modes of torch, which slow down every operator. The modes are not entered if all weights have
arrived. After the last weight has arrived, they are left at the first call of a module at which it is safe to leave them
(`_called_plainly`).
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.hooks import RemovableHandle

_FLOAT = 4  # bytes
GIVES_MEMORY = frozenset(
    [
        torch.Tensor.data_ptr,
        torch.Tensor.numpy,
        torch.Tensor.tolist,
        torch.Tensor.untyped_storage,
        torch.Tensor.storage,
        torch.Tensor._typed_storage,
        torch.Tensor.__array__,
        torch.Tensor.__dlpack__,
        torch.Tensor.__cuda_array_interface__.__get__,
    ]
)


class Arriving(Protocol):
    """Weights in transit, such as psnode.exchange.weights_receiver.Receiver."""

    @property
    def missing(self) -> Collection[int]:
        """Indices of the groups whose weights have not arrived yet."""

    def require(self, start: int, stop: int) -> None:
        """Block until coordinates [start, stop) of the flat vector have arrived."""


class FirstUse:
    """A context manager inside which every use of a weight waits until the weight has arrived.

    One thread enters and exits; modules may run in other threads. `weights`: the flat float32 vector of which the trainable
    parameters of `model` are views. Once all weights have arrived, no weight may become missing before the exit.
    """

    def __init__(self, model: nn.Module, arriving: Arriving, weights: torch.Tensor) -> None:
        self._arriving = arriving
        self._base = weights.data_ptr()
        self._size = weights.numel()
        self._torch_lock = threading.Lock()
        self._waiting: int | None = None
        self._stack = ExitStack()
        self._modes: tuple[_MemoryMode, _Operators] | None = None  # None unless entered
        self._thread = 0  # the thread that entered the modes, since torch keeps modes by thread
        self._entered = False
        self._hooks = list(self._hook(model))

    def __enter__(self) -> Self:
        self._entered = True
        if self._arriving.missing:
            self._thread = threading.get_ident()
            self._modes = self._stack.enter_context(_MemoryMode(self)), self._stack.enter_context(_Operators(self))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered = False
        self._leave_modes()

    @property
    def over(self) -> bool:
        """True if all weights have arrived, or if this thread is inside `require`, where it puts arrived weights in place."""
        return not self._arriving.missing or self._waiting == threading.get_ident()

    def wait(self, values: Iterable[object]) -> None:
        """Block until all weights that share memory with tensors in `values`, including nested lists and tuples, have arrived."""
        with torch._C.DisableTorchFunction():  # reading an address does not use the values
            for tensor in _tensors(values):
                try:
                    start = tensor.data_ptr() - self._base
                except (RuntimeError, NotImplementedError):
                    if tensor.layout is torch.strided:  # the tensor is a wrapper with unknown contents
                        self._require(0, self._size)
                    continue
                if 0 <= start < _FLOAT * self._size and tensor.numel():
                    self._require(*_extent(start, tensor))

    def remove(self) -> None:
        """Remove the hooks from the modules."""
        for handle in self._hooks:
            handle.remove()

    def _require(self, start: int, stop: int) -> None:
        with self._torch_lock:
            self._waiting = threading.get_ident()
            try:
                self._arriving.require(start, stop)
            finally:
                self._waiting = None

    def _leave_modes(self) -> None:
        self._modes = None
        self._stack.close()

    @property
    def _modes_are_superfluous(self) -> bool:
        """True if the two modes of torch can be left before the exit.

        All weights must have arrived, and no other mode may have been entered since.
        """
        if self._modes is None or self._arriving.missing or self._thread != threading.get_ident():
            return False
        on_top = _get_current_function_mode(), _get_current_dispatch_mode()  # type: ignore[no-untyped-call]
        return self._modes == on_top and _called_plainly()

    def _hook(self, model: nn.Module) -> Iterator[RemovableHandle]:
        for module in model.modules():
            own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
            if own:
                yield module.register_forward_pre_hook(self._before(own))

    def _before(self, own: list[nn.Parameter]) -> Callable[[nn.Module, Any], None]:
        def hook(module: nn.Module, inputs: Any) -> None:
            if self._entered and not self.over:
                self.wait(own)
            if self._modes_are_superfluous:
                self._leave_modes()

        return hook


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Waits before every operator that gets a weight as an argument."""

    def __init__(self, watch: FirstUse) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._watch = watch

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if not self._watch.over:
            self._watch.wait(args)
            if kwargs:
                self._watch.wait(kwargs.values())
        return func(*args, **(kwargs or {}))


class _MemoryMode(TorchFunctionMode):
    """Waits before every method that gives access to a weight's memory."""

    def __init__(self, watch: FirstUse) -> None:
        super().__init__()
        self._watch = watch

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in GIVES_MEMORY and not self._watch.over:
            self._watch.wait(args[:1])
        return func(*args, **(kwargs or {}))


def _called_plainly() -> bool:
    """Return True if no active call in this thread suspends torch's modes or restores them when it returns.

    Such calls are mode handlers, backward passes, torch.func, and inference_mode. inference_mode(False) cannot be detected
    directly. Therefore only two kinds of calls count as harmless: calls in torch.nn, and calls in code outside torch that
    does not name inference_mode.
    """
    if torch.is_inference_mode_enabled():
        return False
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        frame = outer
        name = frame.f_globals.get("__name__", "")
        if name.startswith("torch.nn.") or name == __name__:
            continue
        if name == "torch" or name.startswith("torch."):
            return False
        if frame.f_code.co_name == "__torch_dispatch__" or "inference_mode" in frame.f_code.co_names:
            return False
    return True


def _extent(start: int, tensor: torch.Tensor) -> tuple[int, int]:
    """Return the range of float32 coordinates that `tensor`, of any dtype, covers if it begins at byte `start`."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start // _FLOAT, -(-(start + (last + 1) * tensor.element_size()) // _FLOAT)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
