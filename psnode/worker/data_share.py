"""A worker's share of the examples: which batch comes next, also when a run is resumed or the examples are resharded."""

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
    """The batches of one step after another."""

    def __next__(self) -> list[Batch]:
        """Those of the next step."""
        ...

    def close(self) -> None:
        """Let go of threads and processes. Idempotent."""


@runtime_checkable
class Feeding(Protocol):
    """Data that make their batches themselves."""

    def feed(self, sampler: Sampler, finished: int, last: int) -> Feed:
        """The batches of the steps after `finished` up to and including `last`, by `sampler`."""
        ...


@dataclass
class DataShare:
    """The batches to come, made by `sampler`. `place`: the steps of it that are taken, plus the sampler's offset.

    A worker that computes on fewer versions than there are takes fewer steps, so that a version's number does not tell.
    """

    sampler: Sampler
    batches: Feed
    place: int

    @classmethod
    def after(cls, data: Data, sampler: Sampler, finished: int, steps: int) -> DataShare:
        """The share of `sampler` after step `finished`, for at most `steps` steps."""
        make = data.feed if isinstance(data, Feeding) else partial(Prefetch, data)
        return cls(sampler, make(sampler, finished, finished + steps), finished + sampler.epoch_offset)

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: the place, and among how many workers the examples are dealt."""
        return {checkpoint.PLACE: torch.tensor([self.place, self.sampler.workers])}


def resumed(tensors: Mapping[str, torch.Tensor], sampler: Sampler, version: int, *, moves: bool) -> int:
    """The step of `sampler` after which a run continues from a checkpoint of `version`, of which a worker's part is `tensors`.

    That of the version where the part says nothing. `moves`: a place among another number of workers counts too.
    """
    if checkpoint.PLACE not in tensors:
        return version
    place, workers = tensors[checkpoint.PLACE].tolist()
    return sampler.finished(place, workers) if moves or workers == sampler.workers else version
