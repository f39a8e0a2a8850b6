"""Parts of a run with different numbers of workers, and the position of its epochs.

A part begins after `first` finished steps of the run. A step is one update for any number of workers, and an epoch is a
number of examples. Therefore an epoch has fewer steps with P workers than with P - 1, and an offset is added to a step to
find its position in its epoch. The offset is 0 for a run with a single part. After a change of P the run continues the same
epoch: no example of the epoch is taken twice, and fewer examples are left out than the new number of workers takes in one
step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Generation(NamedTuple):
    """A part of a run: the steps after the first `first` steps, taken by `workers` workers."""

    first: int
    workers: int


def continued(parts: Sequence[Generation], step: int, workers: int) -> tuple[Generation, ...]:
    """Return the parts of a run that continues after `step` with `workers` workers.

    Recorded parts that begin at `step` or later are remains of earlier attempts, and are dropped.
    """
    kept = [part for part in parts if part.first < step]
    if not kept or kept[-1].workers != workers:
        kept.append(Generation(step, workers))
    return tuple(kept)


def epoch_offset(parts: Sequence[Generation], examples: int, taken: Callable[[int], int]) -> int:
    """Return the offset to add to a step, so that epochs are counted as if the workers of the last part had taken all steps.

    `examples` is the number of examples in an epoch, and `taken(workers)` the number that this many workers take in a step.
    """
    found = 0
    for before, part in pairwise(parts):
        earlier, now = taken(before.workers), taken(part.workers)
        epoch, within = divmod(part.first + found, examples // earlier)
        found = epoch * (examples // now) + min(-(-within * earlier // now), examples // now) - part.first
    return found
