"""A weight is awaited before any torch function computes with it, however the model uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import checkpoint
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from psnode.worker.first_use import FirstUse


class Recorder:
    """Records the weights that are required; no weight ever arrives."""

    def __init__(self) -> None:
        self.missing: set[int] = {0}
        self.asked: list[tuple[int, int]] = []

    def require(self, start: int, stop: int) -> None:
        self.asked.append((start, stop))


def flat(model: nn.Module) -> tuple[torch.Tensor, dict[str, tuple[int, int]]]:
    """Turn the parameters of `model` into views of one vector; return the vector and the position of each parameter."""
    vector = torch.randn(sum(parameter.numel() for parameter in model.parameters()))
    found, start = {}, 0
    for name, parameter in model.named_parameters():
        stop = start + parameter.numel()
        parameter.data = vector[start:stop].view(parameter.shape)
        found[name], start = (start, stop), stop
    return vector, found


def first_uses(model: nn.Module, *inputs: torch.Tensor) -> tuple[list[tuple[int, int]], dict[str, tuple[int, int]]]:
    vector, where = flat(model)
    recorder = Recorder()
    watch = FirstUse(model, recorder, vector)
    with watch:
        model(*inputs)
    watch.remove()
    return list(dict.fromkeys(recorder.asked)), where


def test_layers_are_asked_for_in_the_order_of_the_forward_pass() -> None:
    asked, where = first_uses(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), torch.ones(5, 3))
    assert asked == [where[name] for name in ("0.weight", "0.bias", "2.weight", "2.bias")]


def test_weights_used_without_a_call_of_their_module_are_noticed() -> None:
    """Check that uses are noticed in MultiheadAttention, which never calls its out_proj, and in an LSTM, which passes its
    weights together.
    """
    x = torch.ones(4, 2, 8)
    for model, inputs in ((nn.MultiheadAttention(8, 2), (x, x, x)), (nn.LSTM(8, 3), (x,))):
        asked, where = first_uses(model, *inputs)
        assert set(asked) == set(where.values())


def test_a_view_of_a_weight_is_the_weight() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ self.weight.data[1:3].t()

    asked, where = first_uses(Views(), torch.ones(5, 6))
    assert asked and all(where["weight"][0] <= start < stop <= where["weight"][1] for start, stop in asked)
    assert (6, 18) in asked  # rows 1 and 2, which the product reads


def test_tensors_apart_from_the_vector_are_not_waited_for() -> None:
    recorder = Recorder()
    with FirstUse(nn.Identity(), recorder, torch.zeros(3)):
        torch.ones(3) + torch.ones(3)
    assert recorder.asked == []


def test_reading_a_shape_is_no_use() -> None:
    model = nn.Linear(3, 4)
    vector, _ = flat(model)
    recorder = Recorder()
    with FirstUse(model, recorder, vector):
        assert model.weight.shape == (4, 3)
    assert recorder.asked == []


def scripted(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ w)


USES = {
    "a scripted function": lambda x, w: scripted_function()(x, w),
    "vmap over rows": lambda x, w: torch.vmap(lambda row: row @ w)(x),
    "vmap over the weight": lambda x, w: torch.vmap(lambda row: row.sum())(w),
    "a gradient within": lambda x, w: torch.func.grad(lambda v: (x @ v).sum())(w),
    "a list of tensors": lambda x, w: torch.cat([x, w]),
    "a keyword": lambda x, w: torch.add(input=x, other=w),
    "a method": lambda x, w: w.mul(x),
    "a view in another type": lambda x, w: w.detach().view(torch.int32).sum(),
    "its bytes": lambda x, w: w.detach().view(torch.uint8).sum(),
    "as complex numbers": lambda x, w: torch.view_as_complex(w.unflatten(1, (2, 2))).sum(),
    "in place": lambda x, w: x.copy_(w.detach()),
    "item": lambda x, w: w[1, 2].item(),
    "data_ptr": lambda x, w: w.data_ptr(),
    "data_ptr of .data": lambda x, w: w.data.data_ptr(),
    "numpy": lambda x, w: w.detach().numpy(),
    "numpy of .data": lambda x, w: w.data.numpy(),
    "asarray": lambda x, w: np.asarray(w.data),
    "from_dlpack": lambda x, w: np.from_dlpack(w.data),
    "tolist": lambda x, w: w.tolist(),
    "storage": lambda x, w: w.untyped_storage(),
    "typed storage": lambda x, w: w.storage(),
    "under no_grad": lambda x, w: torch.no_grad()(lambda: x @ w)(),
    "a loss of the weight alone": lambda x, w: w.square().sum(),
}


@cache
def scripted_function() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return torch.jit.script(scripted)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore:.*TypedStorage", "ignore:.*torch.jit.script")
@pytest.mark.parametrize("use", USES)
def test_a_weight_is_waited_for_however_it_is_used(use: str) -> None:
    """Check that a weight is awaited if it is used outside the module that owns it, so that no call of this module shows the
    use.
    """
    model = nn.Linear(4, 4)
    vector, where = flat(model)
    recorder = Recorder()
    with FirstUse(model, recorder, vector):
        USES[use](torch.ones(4, 4), model.weight)
    start, stop = where["weight"]
    assert set(range(start, stop)) <= {index for asked in recorder.asked for index in range(*asked)} or use == "item"
    assert recorder.asked and all(start <= first < last <= stop for first, last in recorder.asked)


def test_cuda_kernels_of_others_ask_for_the_array_interface() -> None:
    model = nn.Linear(4, 4)
    vector, where = flat(model)
    recorder = Recorder()
    with FirstUse(model, recorder, vector), pytest.raises(AttributeError):  # this weight is on the host
        _ = model.weight.__cuda_array_interface__
    assert recorder.asked == [where["weight"]]


def test_the_call_of_a_module_waits_for_what_it_owns() -> None:
    """Check that the call of a module waits for all weights that it owns, also for those that only a custom kernel reads."""

    class Opaque(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x

    asked, where = first_uses(nn.Sequential(nn.Linear(3, 3), Opaque()), torch.ones(2, 3))
    assert asked[-1] == where["1.weight"]


@pytest.mark.parametrize("use", [lambda model: model(torch.ones(2, 4)), lambda model: model.weight.data_ptr()])
def test_what_puts_weights_in_place_does_not_wait_for_them(use: Callable[[nn.Linear], object]) -> None:
    """Check that torch's operators which copy an arrived group to the vector, as on a GPU, do not wait for its weights."""
    model = nn.Linear(4, 4)
    vector, where = flat(model)

    class Publishing(Recorder):
        def require(self, start: int, stop: int) -> None:
            super().require(start, stop)
            vector[start:stop].copy_(torch.full((stop - start,), 7.0))

    arriving = Publishing()
    with FirstUse(model, arriving, vector):
        use(model)
    assert arriving.asked[0] == where["weight"]
    assert set(arriving.asked) <= set(where.values())
    assert bool((model.weight == 7).all())


def test_nothing_is_asked_for_when_all_is_there_or_outside() -> None:
    model = nn.Linear(3, 3)
    vector, _ = flat(model)
    recorder = Recorder()
    watch = FirstUse(model, recorder, vector)
    model(torch.ones(2, 3))
    recorder.missing = set()
    with watch:
        model(torch.ones(2, 3))
    assert recorder.asked == []


def test_compiled_code_runs_operator_by_operator_under_the_watch() -> None:
    """Check that compiled code runs as single operators under the watch. Such code is found before the first step; if it is
    added later, its uses are still noticed.
    """
    model = nn.Linear(4, 4)
    vector, where = flat(model)
    compiled = torch.compile(scripted, backend="eager")
    compiled(torch.ones(4, 4), model.weight)  # the cached graph is not used either
    recorder = Recorder()
    with FirstUse(model, recorder, vector):
        compiled(torch.ones(4, 4), model.weight)
    assert recorder.asked == [where["weight"]]


class AtOnce(Recorder):
    """A recorder for which all weights arrive together with the first required weight."""

    def require(self, start: int, stop: int) -> None:
        super().require(start, stop)
        self.missing = set()


def modes() -> list[Any]:
    """Return the modes that this thread has entered."""
    return [*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()]  # type: ignore[no-untyped-call]


def test_no_mode_is_entered_when_all_is_there() -> None:
    model = nn.Linear(3, 3)
    vector, _ = flat(model)
    recorder = Recorder()
    recorder.missing = set()
    with FirstUse(model, recorder, vector):
        assert modes() == []


def test_modes_are_left_once_all_has_come_and_entered_again() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    vector, where = flat(model)
    arriving = AtOnce()
    watch = FirstUse(model, arriving, vector)
    for _ in range(2):
        arriving.missing, arriving.asked = {0}, []
        with watch:
            assert len(modes()) == 2
            with torch.autocast("cpu"), torch.no_grad():
                model[0](torch.ones(2, 3))
                assert modes() == []
            model[1](torch.ones(2, 3))
        assert arriving.asked[0] == where["0.weight"]
        assert modes() == []


def test_modes_stay_while_something_is_missing() -> None:
    model = nn.Linear(3, 3)
    vector, _ = flat(model)
    with FirstUse(model, Recorder(), vector):
        model(torch.ones(2, 3))
        assert len(modes()) == 2
    assert modes() == []


class Operators(TorchDispatchMode):
    """A mode that counts operators and calls `then` before each."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count, self._then = 0, then

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self._then()
        return func(*args, **(kwargs or {}))


class Compilable(Operators):
    """A mode whose handler is not called by torch functions written in Python."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._then()
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """A mode that counts functions and calls `then` before each."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        super().__init__()
        self.count, self._then = 0, then

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        self._then()
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", [Operators, Functions])
def test_modes_are_left_in_the_order_in_which_they_were_entered(kind: Callable[[], Any]) -> None:
    """Check that a mode which is entered after psnode's modes stays active, and is left before them."""
    model = nn.Linear(3, 3)
    vector, _ = flat(model)
    with FirstUse(model, AtOnce(), vector):
        with kind() as own:
            model(torch.ones(2, 3))
            assert own in modes() and len(modes()) == 3
            before = own.count
            torch.ones(2) + 1
            assert own.count > before
        assert len(modes()) == 2
        model(torch.ones(2, 3))
        assert modes() == []
    assert modes() == []


def in_a_thread(function: Callable[[], object]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


def among(operators: Any, call: Callable[[], object]) -> None:
    """Call under the modes of another thread, as a backward pass on a GPU does."""
    functions = operators._watch._modes[0]
    with functions:
        torch._C._push_on_torch_dispatch_stack(operators)
        call()
        torch._C._pop_torch_dispatch_stack(None)


def under(context: Any, function: Callable[[], object]) -> None:
    with context:
        function()


class Calls(torch.autograd.Function):
    """A function that calls another function in its forward and backward passes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, function: Callable[[], object]) -> torch.Tensor:
        ctx.function = function
        function()
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        ctx.function()
        return gradients[0] * 2, None


def unseen() -> None:
    """Run an operator that no function mode sees."""
    with torch._C.DisableTorchFunction():
        torch.neg(torch.ones(3))


def hooked(call: Callable[[], object]) -> None:
    """Within the forward pass, run a backward pass that first calls the model."""
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda _: under(nullcontext(), call))
    y = x.sum()
    with torch._C.DisableTorchFunction():
        torch.autograd.grad(y, x)


def differentiated(model: nn.Module, *, reentrant: bool) -> None:
    """Within the forward pass, compute gradients by a backward pass that calls the model again."""
    x = torch.ones(2, 3, requires_grad=True)
    y = checkpoint.checkpoint(model, x, use_reentrant=reentrant)
    y.sum().backward() if reentrant else torch.autograd.grad(y.sum(), x)


WITHOUT_GRADIENTS = torch.inference_mode
SHELTERS: dict[str, Callable[[nn.Module, Callable[[], Any]], object]] = {
    "inference_mode": lambda _, call: under(torch.inference_mode(), call),
    "inference_mode by another name": lambda _, call: under(WITHOUT_GRADIENTS(), call),
    "inference_mode(False)": lambda _, call: [under(torch.inference_mode(False), call), torch.empty(3)],
    "decorated with inference_mode": lambda _, call: [torch.inference_mode(False)(call)(), torch.empty(3)],
    "vmap": lambda model, _: torch.vmap(model)(torch.ones(4, 2, 3)),
    "torch.func.grad": lambda model, _: torch.func.grad(lambda x: model(x).sum())(torch.ones(2, 3)),
    "an autograd.Function": lambda _, call: Calls.apply(torch.ones(3, requires_grad=True), call).sum().backward(),
    "a hook of a gradient": lambda _, call: hooked(call),
    "checkpoint, reentrant": lambda model, _: differentiated(model, reentrant=True),
    "checkpoint": lambda model, _: differentiated(model, reentrant=False),
    "a handler of operators": lambda _, call: under(Operators(call), lambda: torch.ones(3) + 1),
    "a handler that is compiled": lambda _, call: under(Compilable(call), unseen),
    "a handler of functions": lambda _, call: under(Functions(call), lambda: torch.ones(3) + 1),
    "another thread": lambda _, call: in_a_thread(call),
    "a thread with the same modes": lambda _, call: in_a_thread(partial(among, _get_current_dispatch_mode_stack()[0], call)),
}


@pytest.mark.parametrize("shelter", SHELTERS)
def test_torch_is_as_before_wherever_the_last_weight_comes(shelter: str) -> None:
    """Check that torch's modes and dispatch keys are as before, wherever the last weight arrives, even within functions that
    restore modes or keys when they return.
    """
    keys = str(torch._C._dispatch_tls_local_include_set())
    flag = torch.utils._python_dispatch._is_in_torch_dispatch_mode
    model = nn.Linear(3, 3)
    vector, where = flat(model)
    arriving = AtOnce()
    with FirstUse(model, arriving, vector):
        SHELTERS[shelter](model, lambda: model(torch.ones(2, 3)))
        assert arriving.asked[0] == where["weight"]
        assert torch.empty(3).shape == (3,)
        with Operators() as own:
            torch.empty(3)
        assert own.count == 1
        model(torch.ones(2, 3))
        assert modes() == []
    assert modes() == []
    assert str(torch._C._dispatch_tls_local_include_set()) == keys
    assert torch.utils._python_dispatch._is_in_torch_dispatch_mode is flag
