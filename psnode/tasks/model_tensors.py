"""Inventory of a model: its parameters, trained or frozen, its buffers, and the statistics among the buffers.

A statistic is a buffer that each worker's passes change according to the worker's own data. A checkpoint holds the mean of the
workers' values, or the maximum for counters. All other buffers should depend only on the weights and the number of passes. Then
they are equal on all workers, and are saved unchanged.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import xxhash

from psnode.errors import ConfigurationError
from psnode.tasks import tensor_names
from psnode.tasks.tensor_bytes import memory_of

if TYPE_CHECKING:
    import torch

MEAN = "mean"
MAXIMUM = "max"
_CHUNK = 64 << 20  # maximum bytes of tensors that share one message
_RUNNING = {"running_mean": MEAN, "running_var": MEAN, "num_batches_tracked": MAXIMUM}
_OBSERVED = frozenset(("min_val", "max_val", "scale", "zero_point"))


def tensors(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return every parameter and buffer of `model` by name, without copying, including buffers outside the state dict."""
    return {name: value.detach() for name, value in (*tensor_names.parameters(model), *tensor_names.buffers(model))}


class ModelSnapshot:
    """Copy of the state of `model` that passes may change.

    This state consists of all `tensors` (copied to `values`), the attributes of the modules, the lists, dicts and sets in these
    attributes, and the random generators of Python, NumPy and torch (on the CPU). Objects nested deeper in an attribute are not
    copied.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        import numpy as np
        import torch

        self._model = model
        self.values = {name: value.clone() for name, value in tensors(model).items()}
        plain = [vars(module) for module in model.modules() if not isinstance(module, torch.jit.ScriptModule)]
        held = [part for own in plain for part in (own, *own.values()) if type(part) in (dict, OrderedDict, list, set)]
        self._held: list[tuple[Any, Any]] = [(part, part.copy()) for part in held]
        self._generators = random.getstate(), np.random.get_state(), torch.get_rng_state()

    def restore(self) -> None:
        """Restore the whole state. Tensors that have not changed are not written, so that graphs that hold them stay valid."""
        import numpy as np
        import torch

        for part, content in self._held:
            part.clear()
            (part.extend if isinstance(part, list) else part.update)(content)
        for name, value in (*tensor_names.parameters(self._model), *tensor_names.buffers(self._model)):
            before = self.values[name]
            if (value.shape, value.dtype) != (before.shape, before.dtype):
                value.data = before.clone()
            elif not _is_dense(value) or not same(value, before):
                value.detach().copy_(before)
        random.setstate(self._generators[0])
        np.random.set_state(self._generators[1])
        torch.set_rng_state(self._generators[2])


def put_back(model: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Copy `values` into the model's tensors of the same names. Names that the model no longer has are skipped."""
    fit(model, values)
    found = tensors(model)
    for name, value in values.items():
        if name in found:
            found[name].copy_(value)


def give_own_memory(model: torch.nn.Module) -> None:
    """Give each trained parameter of `model` that is a view of larger memory its own memory.

    Files of the model then hold only the parameter. Tied parameters stay tied, since they are one tensor. Until the larger
    memory is released, the model takes twice its memory.
    """
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.untyped_storage().nbytes() > parameter.nbytes:
            parameter.data = parameter.detach().clone()


def fit(model: torch.nn.Module, values: Mapping[str, torch.Tensor]) -> None:
    """Resize each buffer of `model` to the shape of the tensor of the same name in `values`, so that the tensor can be copied.

    Buffers of norms keep their shapes, which the layers determine.
    """
    fixed = norm_statistics(model)
    for name, buffer in tensor_names.buffers(model, aliases=True):
        if name in values and name not in fixed and values[name].shape != buffer.shape:
            buffer.data = buffer.new_empty(values[name].shape)


def load(model: torch.nn.Module, values: Mapping[str, torch.Tensor], *, strict: bool = True) -> None:
    """Load `values`, by plain name, as load_state_dict does, after resizing the buffers to fit `values`.

    Raises RuntimeError if a shape does not match or, with `strict`, a name.
    """
    fit(model, values)
    model.load_state_dict(tensor_names.to_load(values, model), strict=strict)


def not_sized_yet(model: torch.nn.Module) -> set[str]:
    """Return the names of buffers in the state dict whose size is not known before training.

    They are empty, or belong to torch's quantisation observers and have a size that depends on the data.
    """
    empty = {name for name, value in tensor_names.buffers(model, aliases=True) if not value.numel()}
    return persistent_buffers(model) & (empty | observed(model).keys())


def persistent_buffers(model: torch.nn.Module) -> set[str]:
    """Return the names of the buffers that are part of the state dict, aliases included."""
    return set(tensor_names.state(model)) - {name for name, _ in tensor_names.parameters(model, aliases=True)}


def batch_statistics(model: torch.nn.Module) -> dict[str, str]:
    """Return the statistics of torch's own modules (norms and quantisation observers) by name, with MEAN or MAXIMUM."""
    return norm_statistics(model) | observed(model)


def observed(model: torch.nn.Module) -> dict[str, str]:
    """Return the statistics of torch's quantisation observers and fake quantisers, by name, with MEAN or MAXIMUM.

    Ranges and scales have the rule MEAN, and whole numbers the rule MAXIMUM.
    """
    observers: Any = sys.modules.get("torch.ao.quantization.observer")  # already loaded if the model has an observer
    fakes: Any = sys.modules.get("torch.ao.quantization.fake_quantize")
    if observers is None or fakes is None:
        return {}
    return {
        f"{prefix}.{name}".removeprefix("."): MEAN if value.is_floating_point() else MAXIMUM
        for prefix, module in tensor_names.modules(model)
        if isinstance(module, (observers.ObserverBase, fakes.FakeQuantizeBase))
        for name, value in module.named_buffers(recurse=False)
        if name in _OBSERVED and name not in module._non_persistent_buffers_set
    }


def norm_statistics(model: torch.nn.Module) -> dict[str, str]:
    """Return the running statistics of torch's batch and instance norms, by name, with MEAN or MAXIMUM."""
    from torch.nn.modules.batchnorm import _NormBase

    return {
        f"{prefix}.{name}".removeprefix("."): rule
        for prefix, module in tensor_names.modules(model)
        if isinstance(module, _NormBase)
        for name, rule in _RUNNING.items()
        if getattr(module, name) is not None
    }


def check(model: torch.nn.Module, statistics: Mapping[str, str]) -> dict[str, str]:
    """Return a task's `statistics` by plain name, after a check of the model.

    Raises ConfigurationError if `model` has a value that can be neither sent nor saved, or if `statistics` has an invalid name or
    rule.
    """
    import torch
    from torch.nn.parameter import is_lazy

    for name, value in (*tensor_names.parameters(model), *tensor_names.buffers(model)):
        if is_lazy(value):
            raise ConfigurationError(
                f"{name} has no shape yet, as in torch's Lazy modules: call the model once, on an example, in Task.model() "
                "or before the session"
            )
    for name, parameter in tensor_names.parameters(model):
        if parameter.requires_grad and not (finite := parameter.detach().isfinite()).all():
            raise ConfigurationError(
                f"parameter {name} holds {parameter.detach()[~finite][0].item()}, and trained parameters are sent, which needs "
                "finite weights: give it values in Task.model(), or freeze it with requires_grad_(False)"
            )
    state = tensor_names.state(model)
    for name, value in state.items():
        if not isinstance(value, torch.Tensor):
            raise ConfigurationError(
                f"the state dict's {name} is not a tensor but, for example, made by get_extra_state: checkpoints hold only "
                "tensors, "
                "keep it in a buffer or outside of the model"
            )
        if not _is_dense(value):
            raise ConfigurationError(
                f"the state dict's {name} is not a dense tensor: keep it dense, or register it with persistent=False"
            )
    statistics, known = tensor_names.renamed(statistics, tensor_names.of_model(model)), persistent_buffers(model)
    for name, rule in statistics.items():
        if name not in known:
            raise ConfigurationError(f"Task.statistics names {name}, which is not a buffer in the state dict: leave it out")
        if rule not in (MEAN, MAXIMUM):
            raise ConfigurationError(f"Task.statistics has {rule!r} for {name}: it must be {MEAN!r} or {MAXIMUM!r}")
        value = state[name]
        if value.is_complex() if rule == MAXIMUM else not (value.is_floating_point() or value.is_complex()):
            raise ConfigurationError(f"Task.statistics wants the {rule} of {name}, which is {value.dtype}: there is none")
    return statistics


def bits(value: torch.Tensor) -> memoryview:
    """Return the bytes of a dense tensor of any dtype, in row-major order, as a memoryview."""
    return memory_of(_bytes(value.detach().cpu())).data


def same(one: torch.Tensor, two: torch.Tensor) -> bool:
    """Return True if two dense tensors have the same dtype, shape and bytes, NaN included."""
    import torch

    return one.dtype is two.dtype and one.shape == two.shape and torch.equal(_bytes(one), _bytes(two))


def _bytes(value: torch.Tensor) -> torch.Tensor:
    import torch

    return value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _is_dense(value: torch.Tensor) -> bool:
    import torch

    return value.layout is torch.strided and not value.is_quantized


def contents(model: torch.nn.Module) -> dict[str, Any]:
    """Return dtype, shape and xxh3_64 of the bytes of each dense tensor, by name, in types that JSON has."""

    return {
        name: [str(value.dtype), list(value.shape), xxhash.xxh3_64_intdigest(bits(value))]
        for name, value in tensors(model).items()
        if _is_dense(value)
    }


def chunks(values: Mapping[str, torch.Tensor], names: Iterable[str]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of `names` in order, in dictionaries of at most 64 MiB. A larger tensor has a dictionary of its own."""
    chunk: dict[str, torch.Tensor] = {}
    size = 0
    for name in names:
        nbytes = values[name].nbytes
        if chunk and size + nbytes > _CHUNK:
            yield chunk
            chunk, size = {}, 0
        chunk[name] = values[name]
        size += nbytes
    if chunk:
        yield chunk
