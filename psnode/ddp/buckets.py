"""Buckets of gradients, and the conversion between DDP's order of tensors and the order in which they are coded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from psnode.codecs.arrays import Floats
from psnode.exchange.segment_coder import SegmentCoder
from psnode.plans.groups import Plan

Names = tuple[str, ...]


class Job(NamedTuple):
    """A bucket of a step, with its tensors in DDP's order.

    `buffer`: flat, of any floating dtype, on any device; the mean will overwrite it.
    """

    number: int
    names: Names
    shapes: tuple[tuple[int, ...], ...]
    buffer: torch.Tensor
    last: bool  # True for the last bucket of its step
    used: tuple[bool, ...]  # by tensor: True if this rank has a gradient for it

    def places(self) -> Iterator[tuple[str, slice]]:
        """Yield each tensor's name and its slice of the buffer."""
        start = 0
        for name, shape in zip(self.names, self.shapes, strict=True):
            size = int(np.prod(shape, dtype=np.int64))
            yield name, slice(start, start + size)
            start += size


class Bucket(NamedTuple):
    """The tensors of a bucket, their plan, and a coder for each segment of the plan."""

    names: Names
    plan: Plan
    coders: tuple[SegmentCoder, ...]
    merged: tuple[bool, ...]  # by segment: True if payloads are summed before they are decoded


def rearranged(flat: Floats, job: Job, plan: Plan) -> Floats:
    """Return a copy of a bucket's gradients `flat`, in the order of the bucket's `plan` instead of DDP's order."""
    places, out = plan.slices(), np.empty(plan.size, np.float32)
    for name, place in job.places():
        out[places[name]] = flat[place]
    return out


def put_back(total: Floats, job: Job, plan: Plan) -> Floats:
    """Return a copy of `total` in DDP's order instead of the order of `plan`: the inverse of `rearranged`."""
    places, out = plan.slices(), np.empty(plan.size, np.float32)
    for name, place in job.places():
        out[place] = total[places[name]]
    return out


def regrouped(jobs: Sequence[Job], order: Sequence[Names]) -> list[Job] | None:
    """Return jobs with copies of a step's gradients, regrouped into the buckets in `order`; None if the tensors differ.

    `jobs`: all buckets of the step. `order`: the tensor names of each new bucket.
    """
    shapes = {name: shape for job in jobs for name, shape in zip(job.names, job.shapes, strict=True)}
    if sorted(shapes) != sorted(name for names in order for name in names):
        return None
    parts = {name: job.buffer[place] for job in jobs for name, place in job.places()}
    used = {name: flag for job in jobs for name, flag in zip(job.names, job.used, strict=True)}
    return [
        Job(
            number,
            names,
            tuple(shapes[name] for name in names),
            torch.cat([parts[name] for name in names]),
            number == len(order) - 1,
            tuple(used[name] for name in names),
        )
        for number, names in enumerate(order)
    ]


def hand_back(made: Sequence[Job], jobs: Sequence[Job]) -> None:
    """Copy the buffers of `made`, which `regrouped` made from `jobs`, back into the buffers of `jobs`."""
    means = {name: job.buffer[place] for job in made for name, place in job.places()}
    for job in jobs:
        for name, place in job.places():
            job.buffer[place].copy_(means[name])
