"""A run whose parts had different numbers of workers, and the position of its epochs.

A part begins after `first` finished steps of the run. Steps count updates from any number of workers; an epoch counts examples.
With P workers it has fewer steps than with P - 1, so a step's place in its epoch is found by adding an offset, which is 0 for a
run of one part. After a change of P it continues the epoch: no example of it is taken twice, and the number of examples left out
is smaller than the number that the workers now take in a step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple


class Generation(NamedTuple):
    """The steps after the first `first` ones, taken by `workers` workers."""

    first: int
    workers: int


def continued(parts: Sequence[Generation], step: int, workers: int) -> tuple[Generation, ...]:
    """Return the parts of a run that continues after `step` with `workers` workers; its earlier attempts at later steps are
    dropped."""
    kept = [part for part in parts if part.first < step]
    if not kept or kept[-1].workers != workers:
        kept.append(Generation(step, workers))
    return tuple(kept)


def epoch_offset(parts: Sequence[Generation], examples: int, taken: Callable[[int], int]) -> int:
    """Return the offset to the number of steps that makes it count epochs as if the workers of the last part had taken all of
    them.

    `taken(workers)`: the number of examples, out of `examples`, in a step.
    """
    found = 0
    for before, part in pairwise(parts):
        earlier, now = taken(before.workers), taken(part.workers)
        epoch, within = divmod(part.first + found, examples // earlier)
        found = epoch * (examples // now) + min(-(-within * earlier // now), examples // now) - part.first
    return found
