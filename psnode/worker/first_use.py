"""Noticing that a model is about to use a weight, whatever the code of its layers looks like.

Three nets, each of which catches uses that slip through the others:

* every operator of torch's dispatcher, however it is called: from Python, from TorchScript, below torch.vmap;
* every method of a tensor that gives its memory away: data_ptr(), numpy(), DLPack, __cuda_array_interface__;
* the call of a module that owns parameters: custom kernels may be handed a weight inside it.

Code that runs outside all three (compiled graphs, CUDA graphs) is found before the first step (psnode.worker.inspection).

The first two are modes of torch that slow every operator down: they are not entered when all weights have arrived, and
left at the first call of a module after the last one has.
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

_FLOAT = 4
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
    """Weights that are on their way: psnode.exchange.receiver.Receiver."""

    @property
    def missing(self) -> Collection[int]:
        """Names that are not there yet; empty when all are."""

    def require(self, start: int, stop: int) -> None:
        """Return when coordinates [start, stop) of the flat vector have arrived."""


class FirstUse:
    """While it is entered, every use of `weights` waits for them. For one thread that enters; modules may run in others.

    `weights`: the flat float32 vector that the trainable parameters of `model` are views of. Once nothing is missing, nothing
    may become missing before the exit.
    """

    def __init__(self, model: nn.Module, arriving: Arriving, weights: torch.Tensor) -> None:
        self._arriving = arriving
        self._base = weights.data_ptr()
        self._size = weights.numel()
        self._torch_lock = threading.Lock()
        self._waiting: int | None = None
        self._stack = ExitStack()
        self._modes: tuple[_MemoryMode, _Operators] | None = None  # while they are entered
        self._thread = 0  # that entered them: torch keeps its modes by thread
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
        """True if nothing is left to wait for, or this thread is the one that puts weights in place."""
        return not self._arriving.missing or self._waiting == threading.get_ident()

    def wait(self, values: Iterable[object]) -> None:
        """Return when all weights have arrived that the tensors among `values`, or in lists among them, are or look at."""
        with torch._C.DisableTorchFunction():  # asking for an address does not use the values
            for tensor in _tensors(values):
                try:
                    start = tensor.data_ptr() - self._base
                except (RuntimeError, NotImplementedError):
                    if tensor.layout is torch.strided:  # a wrapper, with unknown contents
                        self._require(0, self._size)
                    continue
                if 0 <= start < _FLOAT * self._size and tensor.numel():
                    self._require(*_extent(start, tensor))

    def remove(self) -> None:
        """Take the hooks off the modules."""
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
        """True if they can be left before the exit: all weights have arrived, and no mode entered after them is still active."""
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
    """Waits before every operator that is given a weight."""

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
    """Waits before every method that gives a weight's memory away."""

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
    """True if no function of torch that keeps modes aside, or puts them back when it returns, is being called in this thread.

    Those are handlers of modes, backward passes, torch.func, and inference_mode, which cannot be asked for when it was entered
    with False. Only calls of modules, and code of others that does not name inference_mode, are known to be harmless.
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
    """The first float32 that `tensor`, of whatever type, covers, and one past the last, if it begins at byte `start`."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return start // _FLOAT, -(-(start + (last + 1) * tensor.element_size()) // _FLOAT)


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, tuple | list):
            yield from _tensors(value)
