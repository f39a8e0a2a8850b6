"""Names of tensors as wrappers of a model change them: torch.compile puts `_orig_mod` in, DistributedDataParallel `module`.

A file of a compiled model fits the plain one, and the other way round: names are alike if they are equal without these.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TypeVar

_COMPILED = "_orig_mod"
_PARALLEL = "module."

T = TypeVar("T")


def plain(name: str) -> str:
    """A tensor's name in the model that was not compiled, nor any part of it."""
    return ".".join(part for part in name.split(".") if part != _COMPILED)


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
