"""The data of a session: the batch size and the length of an epoch, which follow from the program's loader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.task import Batch
from psnode.tasks.data.loader import Dealt, Streamed, is_map_style, steps_in
from psnode.tasks.own_loop import Constraint, MakeOptimizer, OwnLoop, ParameterGroups

if TYPE_CHECKING:
    import torch

    from psnode.config.schedules import OwnRate


def batch_size(loader: Iterable[Batch]) -> int:
    """Return the loader's `batch_size`, the number of examples per batch, or 1 if the loader does not state it."""
    return getattr(loader, "batch_size", None) or 1


def own_loop(
    model: torch.nn.Module,
    loader: Iterable[Batch],
    steps_per_epoch: int | None,
    config: Config,
    workers: int,
    constraint: Constraint | None,
    groups: ParameterGroups,
    rate: OwnRate | None,
    optimizer: MakeOptimizer | None,
) -> OwnLoop:
    """Return the task of a session whose program loops over `loader` on `workers` ranks.

    Raises ConfigurationError if the length of an epoch is unknown, or if both the loader and `steps_per_epoch` state it.
    """
    if is_map_style(loader):
        dealt = Dealt(loader)
        if steps_per_epoch is not None:
            raise ConfigurationError("steps_per_epoch is for iterables: the examples of this loader say how long an epoch is")
        return OwnLoop(model, dealt, constraint, groups, rate, optimizer, examples=dealt.batch_size)
    steps = steps_in(loader, config.batches_per_step, steps_per_epoch)
    streamed = Streamed(loader, steps * workers * config.batch_size * config.batches_per_step)
    return OwnLoop(model, streamed, constraint, groups, rate, optimizer, steps=steps)
