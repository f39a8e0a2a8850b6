"""Stand-ins for gradients that the worker has already sent. They raise an error when they are used.

Between `loss.backward()` and `s.step(loss)` a loop can no longer clip, scale or replace gradients, since they have been sent.
torch has no hook for the use of `.grad`. Therefore each parameter gets a stand-in gradient without memory, on which every
operator raises. If the stand-in is still in place when the step is taken, the loop has assigned no gradient.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from psnode.errors import ConfigurationError
from psnode.worker.first_use import GIVES_MEMORY

REMEDY = (
    "clip_grad_norm= of the session clips the mean gradient (gradient_norm in metrics.jsonl), parameter.register_hook(f) changes "
    'gradients before they leave, and gradients="step" has them leave in s.step(), so that the loop can use them before'
)
_ACCUMULATES = ("aten::add_.Tensor", "aten::add.Tensor")  # called by torch's engine in a second backward pass
_ZEROES = ("aten::zero_", "aten::_foreach_zero_")
_SETTER, _HARMLESS_SETTER = "__set__", torch.Tensor.requires_grad.__set__  # type: ignore[attr-defined]
_program = threading.local()  # `uses`: True during a call by the program, False in calls by torch's engine


def another_gradient(name: str) -> ConfigurationError:
    """Return the error for a second gradient of the parameter `name` in a step."""
    return ConfigurationError(
        f"parameter {name} got another gradient after the step's had left, by another pass or a line that assigns .grad: "
        "call loss.backward() once before s.step(), or sum the losses, or accumulate with batches_per_step=K; take gradients of "
        "inputs by torch.autograd.grad(loss, inputs), give checkpoint() use_reentrant=False, or say "
        'gradients="step" to the session, which sends in s.step() what .grad holds then'
    )


class Departed(torch.Tensor):
    """Stand-in for a parameter's gradient that has been sent. Its shape, dtype and device can be read, but no values."""

    _name: str
    _own: DepartedGradients

    @staticmethod
    def __new__(cls, parameter: nn.Parameter, name: str, own: DepartedGradients) -> Departed:
        found: Departed = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
        found._name, found._own = name, own
        return found

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Run functions that read no values, and refuse all others."""
        sets = getattr(func, "__name__", "") == _SETTER and func != _HARMLESS_SETTER
        if func in GIVES_MEMORY or (sets and not isinstance(args[-1], Departed)):
            raise _used(args, kwargs)
        before, _program.uses = getattr(_program, "uses", False), True
        try:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **(kwargs or {}))
        finally:
            _program.uses = before

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None) -> Any:  # type: ignore[override]
        """Refuse operators on the values. Clearing the gradient after a step is allowed."""
        name = func.name()
        found = _departed(args, kwargs)
        if name in _ZEROES and found._own.over:  # zero_grad(set_to_none=False) after a step
            return args[0] if isinstance(args[0], torch.Tensor) else None
        if name in _ACCUMULATES and not getattr(_program, "uses", False):
            raise another_gradient(found._name)
        raise _used(args, kwargs)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise _used([self], None)


def _departed(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> Departed:
    return next(leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, Departed))


def _used(args: Sequence[Any], kwargs: Mapping[str, Any] | None) -> ConfigurationError:
    return ConfigurationError(
        f"the loop uses the gradient of parameter {_departed(args, kwargs)._name}, which left during loss.backward(), and the "
        f"line would have no effect: {REMEDY}"
    )


class DepartedGradients:
    """The stand-ins for the gradients of `parameters`, by name.

    `over`: True if the step has been taken, so that the loop may set the gradients to zero.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter]) -> None:
        self._parameters = parameters
        self.stand_ins = {name: Departed(parameter, name, self) for name, parameter in parameters.items()}
        self.over = False

    def check(self, left: Iterable[str]) -> None:
        """Raise ConfigurationError if the loop has replaced or removed a stand-in.

        `left`: the parameters whose gradients have been sent.
        """
        for name in left:
            found = self._parameters[name].grad
            if found is None:
                raise ConfigurationError(
                    f"the gradient of parameter {name} was set to None, as zero_grad() does, between loss.backward() and "
                    "s.step(), when it had left already: zero gradients before backward, or not at all; to leave a parameter out "
                    f"of a step, {REMEDY}"
                )
            if found is not self.stand_ins[name]:
                raise another_gradient(name)

    def remove(self) -> None:
        """Remove the stand-ins, so that parameters have no gradients, as after zero_grad()."""
        for name, parameter in self._parameters.items():
            if parameter.grad is self.stand_ins[name]:
                parameter.grad = None
        self.over = False
