"""A run whose parts were taken by different numbers of workers, and where its epochs stand.

A part begins after `first` finished steps of the run. Steps count updates, whoever makes them; an epoch counts examples. With P
workers it has fewer steps than with P - 1, so a step's place in its epoch is found by adding a shift to it. The shift is 0 for a
run of one part, and such that after a change of P the epoch goes on: no example of it is taken twice, and fewer than the
workers now take in a step are left out.
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
    """The parts of a run that goes on after `step` with `workers` workers, whatever came of its later steps before."""
    kept = [part for part in parts if part.first < step]
    if not kept or kept[-1].workers != workers:
        kept.append(Generation(step, workers))
    return tuple(kept)


def shift(parts: Sequence[Generation], examples: int, taken: Callable[[int], int]) -> int:
    """Offset of the number of steps that makes it count epochs as if the workers of the last part had taken all of them.

    `taken(workers)`: how many of all `examples` a step takes.
    """
    found = 0
    for before, part in pairwise(parts):
        earlier, now = taken(before.workers), taken(part.workers)
        epoch, within = divmod(part.first + found, examples // earlier)
        found = epoch * (examples // now) + min(-(-within * earlier // now), examples // now) - part.first
    return found
