"""A worker's share of the examples, and its position in the share after a resumption or a resharding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from psnode.records import checkpoint
from psnode.task import Batch, Data
from psnode.tasks.data.prefetch import Prefetch
from psnode.tasks.data.sampler import Sampler


class Feed(Protocol):
    """An iterator over the batches of successive steps."""

    def __next__(self) -> list[Batch]:
        """Return the batches of the next step."""
        ...

    def close(self) -> None:
        """End the threads and processes of the feed. Further calls have no effect."""


@runtime_checkable
class Feeding(Protocol):
    """Data that makes its batches itself. Other data is asked for each batch, by the indices of its examples."""

    def feed(self, sampler: Sampler, finished: int, last: int) -> Feed:
        """Return the batches that `sampler` selects for the steps after `finished`, up to and including `last`."""
        ...


@dataclass
class DataShare:
    """The coming batches of a worker, selected by `sampler`.

    `place`: the worker's position in its share, which is the last step taken from the share plus the sampler's
    `sample_offset`. It cannot be derived from the version, since a worker that skips versions takes fewer steps.
    """

    sampler: Sampler
    batches: Feed
    place: int

    @classmethod
    def after(cls, data: Data, sampler: Sampler, finished: int, steps: int) -> DataShare:
        """Return the share of `sampler` after step `finished`, for at most `steps` steps."""
        make = data.feed if isinstance(data, Feeding) else partial(Prefetch, data)
        return cls(sampler, make(sampler, finished, finished + steps), finished + sampler.sample_offset)

    def state(self) -> dict[str, torch.Tensor]:
        """Return, for a checkpoint, the worker's position in its share and the sampler's number of workers."""
        return {checkpoint.PLACE: torch.tensor([self.place, self.sampler.workers])}


def resumed(tensors: Mapping[str, torch.Tensor], sampler: Sampler, finished: int, *, moves: bool) -> int:
    """Return the step of `sampler` after which a worker continues when it resumes from the checkpoint of step `finished`.

    `tensors`: the worker's part of the checkpoint, which may record the worker's position in its share. The recorded
    position determines the step. Without one, the step is `finished`. A position that belongs to another number of workers
    is converted to the present number if `moves` is True; if `moves` is False, the step is `finished`.
    """
    if checkpoint.PLACE not in tensors:
        return finished
    place, workers = tensors[checkpoint.PLACE].tolist()
    return sampler.finished(place, workers) if moves or workers == sampler.workers else finished
