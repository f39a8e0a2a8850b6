"""Names of tensors, without the parts that wrappers add: torch.compile inserts `_orig_mod`, DistributedDataParallel `module`.

psnode calls every tensor by its name in the model without compiled parts. Plans, messages and files of a run use only these
names, so a run can continue with a model that has been compiled since, or is no longer compiled. If the names of two tensors
differ only in `_orig_mod`, all tensors of the model keep their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import nn

_COMPILED = "_orig_mod"
_PART = re.compile(rf"(?<![^./]){_COMPILED}(\.|$)")  # in the name of a tensor, or in a key that contains such a name
_PARALLEL = "module."

T = TypeVar("T")
Rename = Callable[[str], str]


def plain(name: str) -> str:
    """Return a tensor's name in the model without compiled parts.

    Keys that contain names of tensors (records.state_names) are accepted too.
    """
    return _PART.sub("", name).removesuffix(".") if _COMPILED in name else name


def renaming(names: Iterable[str]) -> Rename:
    """Return the function `plain`, or the function `str`, which changes no name.

    The function is `str` if no name belongs to a compiled part, or if two of `names` would become equal.
    """
    compiled = [name for name in names if _COMPILED in name]
    if not compiled:
        return str
    every = {*names}
    return plain if len({plain(name) for name in every}) == len(every) else str


def of_model(model: nn.Module) -> Rename:
    """Return the renaming for the tensors of `model`, including aliases and buffers outside the state dict."""
    tensors = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return renaming([name for name, _ in tensors])


def parameters(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of `model` by plain name, in state-dict order: each once, or with `aliases` under all its names."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_parameters(remove_duplicate=not aliases)]


def buffers(model: nn.Module, *, aliases: bool = False) -> list[tuple[str, torch.Tensor]]:
    """Return the buffers of `model` by plain name: each once, or with `aliases` under all its names."""
    rename = of_model(model)
    return [(rename(name), value) for name, value in model.named_buffers(remove_duplicate=not aliases)]


def modules(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules of `model` by plain name, under all names that they have."""
    rename = of_model(model)
    return [(rename(name), part) for name, part in model.named_modules(remove_duplicate=False)]


def state(model: nn.Module) -> dict[str, Any]:
    """Return the state dict of `model`, by plain name."""
    return renamed(model.state_dict(), of_model(model))


def to_load(values: Mapping[str, T], model: nn.Module) -> dict[str, T]:
    """Return `values`, given by plain name, under the names that load_state_dict of `model` expects."""
    rename = of_model(model)
    own = {rename(name): name for name in model.state_dict()}
    return {own.get(name, name): value for name, value in values.items()}


def renamed(values: Mapping[str, T], rename: Rename) -> dict[str, T]:
    """Return `values` with their names changed by `rename`."""
    return {rename(name): value for name, value in values.items()}


def matched(found: Mapping[str, T], own: Collection[str]) -> dict[str, T]:
    """Return the entries of `found` under the matching names in `own`.

    Entries without a match keep their names. If two names clash, all entries keep their names.
    """
    there = _without(own, found)
    here = _without(found, own)
    homes = {short: name for name, short in there.items()}
    names = {name: name if name in there else homes.get(short, name) for name, short in here.items()}
    clash = len(homes) < len(there) or len(set(names.values())) < len(names)
    return dict(found) if clash else {names[name]: value for name, value in found.items()}


def _without(names: Collection[str], others: Collection[str]) -> dict[str, str]:
    """Return a dict from each name to its form without wrappers.

    `module.` counts as a wrapper if all of `names` begin with it and not all of `others` do.
    """
    short = {name: plain(name) for name in names}
    wrapped = all(each.startswith(_PARALLEL) for each in short.values())
    if wrapped and not all(plain(each).startswith(_PARALLEL) for each in others):
        return {name: each.removeprefix(_PARALLEL) for name, each in short.items()}
    return short
