"""Names of tensors as wrappers of a model change them: torch.compile puts `_orig_mod` in, DistributedDataParallel `module`.

psnode knows every tensor by the name that it has in the model that is not compiled, nor any part of it: plans, messages and files
of a run hold no other, and a run goes on with a model that is compiled, or is not any more. Two tensors of a model that are alike
but for `_orig_mod` keep their names, and all tensors with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import nn

_COMPILED = "_orig_mod"
_PART = re.compile(rf"(?<![^./]){_COMPILED}(\.|$)")  # of a name, or of a key of a file with names in it
_PARALLEL = "module."

T = TypeVar("T")
Rename = Callable[[str], str]


def plain(name: str) -> str:
    """A tensor's name in the model that was not compiled, nor any part of it. Also of keys that hold names (records.layout)."""
    return _PART.sub("", name).removesuffix(".") if _COMPILED in name else name


def renaming(names: Iterable[str]) -> Rename:
    """`plain`, or no change at all if two of `names` would be one."""
    compiled = [name for name in names if _COMPILED in name]
    if not compiled:
        return str
    every = {*names}
    return plain if len({plain(name) for name in every}) == len(every) else str


def of_model(model: nn.Module) -> Rename:
    """Renaming of the tensors of `model`, aliases and buffers without a place in the state dict included."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return renaming([name for name, _ in tensors])


def parameters(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, nn.Parameter]]:
    """Parameters of `model` by plain name, in state-dict order, each once, or with its `aliases`."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_parameters(remove_duplicate=not aliases)]


def buffers(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Buffers of `model` by plain name, each once, or with its `aliases`."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_buffers(remove_duplicate=not aliases)]


def modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Parts of `model` by plain name, under every name that they have."""
    rename = of_model(model)
    return [(rename(name), part) for name, part in model.named_modules(remove_duplicate=False)]


def state(model: nn.Module) -> dict[str, Any]:
    """The state dict of `model`, by plain name."""
    return renamed(model.state_dict(), of_model(model))


def to_load(values: Mapping[str, T], model: nn.Module) -> dict[str, T]:
    """Values by plain name as load_state_dict of `model` takes them."""
    rename = of_model(model)
    own = {rename(name): name for name in model.state_dict()}
    return {own.get(name, name): value for name, value in values.items()}


def renamed(values: Mapping[str, T], rename: Rename) -> dict[str, T]:
    """`values` by other names."""
    return {rename(name): value for name, value in values.items()}


def matched(found: Mapping[str, T], own: Collection[str]) -> dict[str, T]:
    """`found` by the names in `own` where these are alike; under its own name what has no place, and all where two clash."""
    there = _without(own, found)
    here = _without(found, own)
    homes = {short: name for name, short in there.items()}
    names = {name: name if name in there else homes.get(short, name) for name, short in here.items()}
    clash = len(homes) < len(there) or len(set(names.values())) < len(names)
    return dict(found) if clash else {names[name]: value for name, value in found.items()}


def _without(names: Collection[str], others: Collection[str]) -> dict[str, str]:
    """By name: the same without wrappers; `module.` is one if all of `names` begin with it and not all `others`."""
    short = {name: plain(name) for name in names}
    wrapped = all(each.startswith(_PARALLEL) for each in short.values())
    if wrapped and not all(plain(each).startswith(_PARALLEL) for each in others):
        return {name: each.removeprefix(_PARALLEL) for name, each in short.items()}
    return short
