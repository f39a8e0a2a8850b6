"""Names of tensors and the changes that wrappers make: torch.compile inserts `_orig_mod`, DistributedDataParallel `module`.

psnode knows every tensor by its name in the model without compiled parts: plans, messages and files of a run use only these
names, so a run can continue with a model that is compiled, or no longer compiled. If two tensors of a model differ only in
`_orig_mod`, all tensors keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import nn

_COMPILED = "_orig_mod"
_PART = re.compile(rf"(?<![^./]){_COMPILED}(\.|$)")  # in a name, or in a key of a file with names in it
_PARALLEL = "module."

T = TypeVar("T")
Rename = Callable[[str], str]


def plain(name: str) -> str:
    """Return a tensor's name in the model without compiled parts. Also for keys that hold names (records.state_names)."""
    return _PART.sub("", name).removesuffix(".") if _COMPILED in name else name


def renaming(names: Iterable[str]) -> Rename:
    """Return `plain`, or no change at all if two of `names` would become equal."""
    compiled = [name for name in names if _COMPILED in name]
    if not compiled:
        return str
    every = {*names}
    return plain if len({plain(name) for name in every}) == len(every) else str


def of_model(model: nn.Module) -> Rename:
    """Return the renaming of the tensors of `model`, including aliases and buffers outside the state dict."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return renaming([name for name, _ in tensors])


def parameters(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of `model` by plain name, in state-dict order, each once, or with its `aliases`."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_parameters(remove_duplicate=not aliases)]


def buffers(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers of `model` by plain name, each once, or with its `aliases`."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_buffers(remove_duplicate=not aliases)]


def modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the parts of `model` by plain name, under every name that they have."""
    rename = of_model(model)
    return [(rename(name), part) for name, part in model.named_modules(remove_duplicate=False)]


def state(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of `model`, by plain name."""
    return renamed(model.state_dict(), of_model(model))


def to_load(values: Mapping[str, T], model: nn.Module) -> dict[str, T]:
    """Return values by plain name in the form that load_state_dict of `model` takes."""
    rename = of_model(model)
    own = {rename(name): name for name in model.state_dict()}
    return {own.get(name, name): value for name, value in values.items()}


def renamed(values: Mapping[str, T], rename: Rename) -> dict[str, T]:
    """Return `values` under other names."""
    return {rename(name): value for name, value in values.items()}


def matched(found: Mapping[str, T], own: Collection[str]) -> dict[str, T]:
    """Return `found` under the matching names in `own`; entries without a match keep their names, and so do all if two clash."""
    there = _without(own, found)
    here = _without(found, own)
    homes = {short: name for name, short in there.items()}
    names = {name: name if name in there else homes.get(short, name) for name, short in here.items()}
    clash = len(homes) < len(there) or len(set(names.values())) < len(names)
    return dict(found) if clash else {names[name]: value for name, value in found.items()}


def _without(names: Collection[str], others: Collection[str]) -> dict[str, str]:
    """Map each name to itself without wrappers; `module.` is one if all of `names` begin with it and not all `others`."""
    short = {name: plain(name) for name in names}
    wrapped = all(each.startswith(_PARALLEL) for each in short.values())
    if wrapped and not all(plain(each).startswith(_PARALLEL) for each in others):
        return {name: each.removeprefix(_PARALLEL) for name, each in short.items()}
    return short
