"""A search for objects that the training program does not pass to the hook: the DDP that calls the hook, and a GradScaler."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from psnode.errors import ConfigurationError

_T = TypeVar("_T")


def group_of(state: object, parameters: Collection[int]) -> dist.ProcessGroup | None:
    """Return the process group of the DDP that has registered `state`.

    If no DDP has registered it, return the group of a DDP that has some of `parameters`, given by their ids; None if there
    is no such DDP either. DDP passes neither itself nor its group to a hook, so this function searches all objects. Raises
    ConfigurationError if it finds several DDPs whose groups have different ranks.
    """
    models = [each for each in _alive(DistributedDataParallel) if "_comm_hooks" in vars(each)]
    found = [each for each in models if any(known is state for _, known in each._comm_hooks)]
    found = found or [each for each in models if any(id(parameter) in parameters for parameter in each.parameters())]
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    for each in found:
        with suppress(KeyError, ValueError):  # the group has been destroyed
            groups[tuple(dist.get_process_group_ranks(each.process_group))] = each.process_group
    if len(groups) > 1:
        ranks = " and ".join(str(list(each)) for each in sorted(groups))
        raise ConfigurationError(f"the model has been wrapped in DDP for the ranks {ranks}: write comm_hook(process_group=...)")
    return next(iter(groups.values()), None)


def scaler_in_use() -> torch.amp.GradScaler | None:
    """Return the GradScaler that has scaled a loss, or None. Raises ConfigurationError if several GradScalers have done so."""
    found = [each for each in _alive(torch.amp.GradScaler) if each.is_enabled() and each._scale is not None]
    if len(found) > 1:
        raise ConfigurationError(
            f"{len(found)} GradScalers are in use: write comm_hook(scaler=...) with that of this model's loss, False if it has "
            "none"
        )
    return found[0] if found else None


def _alive(kind: type[_T]) -> Iterator[_T]:
    """Yield all live objects of a class."""
    return (each for each in gc.get_objects() if issubclass(type(each), kind))
