"""A worker's share of the examples: which batch comes next, also when a run is resumed or the examples are resharded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from psnode.records import checkpoint
from psnode.task import Data
from psnode.tasks.data.prefetch import Prefetch
from psnode.tasks.data.sampler import Sampler


@dataclass
class Share:
    """The batches to come, made by `sampler`. `place`: the steps of it that are taken, with the sampler's shift.

    A worker that computes on fewer versions than there are takes fewer steps, so that a version's number does not tell.
    """

    sampler: Sampler
    batches: Prefetch
    place: int

    @classmethod
    def behind(cls, data: Data, sampler: Sampler, finished: int, steps: int) -> Share:
        """The share of `sampler` behind step `finished`, for at most `steps` steps."""
        return cls(sampler, Prefetch(data, sampler, finished, finished + steps), finished + sampler.shift)

    def state(self) -> dict[str, torch.Tensor]:
        """For a checkpoint: the place, and among how many workers the examples are dealt."""
        return {checkpoint.PLACE: torch.tensor([self.place, self.sampler.workers])}


def resumed(tensors: Mapping[str, torch.Tensor], sampler: Sampler, version: int, *, moves: bool) -> int:
    """The step of `sampler` behind which a run goes on from a checkpoint of `version`, of which a worker's part is `tensors`.

    That of the version where the part says nothing. `moves`: a place among another number of workers counts too.
    """
    if checkpoint.PLACE not in tensors:
        return version
    place, workers = tensors[checkpoint.PLACE].tolist()
    return sampler.finished(place, workers) if moves or workers == sampler.workers else version
