"""Pushes of workers for a group. Each push is read, checked and measured as a whole before any part of it is added."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.base import Measured
from psnode.errors import PayloadError, WireError
from psnode.plans.coding import ALL, gradient_key
from psnode.plans.groups import Group, Plan, Segment
from psnode.protocol import wire
from psnode.protocol.wire import Flag, Frame


class MeasuredPayload(NamedTuple):
    """A segment's payload with the result of `Codec.measure`, which holds its norm and a function that adds it."""

    segment: Segment
    payload: Payload
    measured: Measured


class Push(NamedTuple):
    """A worker's gradient of a group.

    `norm`: the norm of all parts together, see Measured. `absent`: tensors without a gradient, numbered from 0 among the
    tensors with a part in the group. `counts_as`: the weight of the push in the mean, as a multiple of the usual weight of a
    gradient.
    """

    norm: float
    parts: tuple[MeasuredPayload, ...]
    absent: frozenset[int]
    counts_as: float = 1.0


class Reader:
    """Reader of gradient frames.

    `sizes`: by segment, the largest number of bytes of a payload. `merges`: by segment, True if its payloads are merged
    undecoded. `unit`: the usual weight of a gradient, None if frames state no weight.

    Several threads may use a Reader. Each thread has one buffer for decoded parts, so it must be done with a push before it
    reads the next one.
    """

    def __init__(
        self, plan: Plan, codecs: Sequence[Codec], sizes: Sequence[int], merges: Sequence[bool], seed: int, unit: int | None
    ) -> None:
        self._codecs, self._limits, self._merges, self._seed, self._unit = codecs, sizes, merges, seed, unit
        self._covered = {group.index: len(plan.covering(group.start, group.stop)) for group in plan.groups}
        self._rooms = threading.local()

    def read(self, group: Group, frame: Frame) -> Push:
        """Return the push in `frame`. The frame must not be released while the push is in use.

        Raises PayloadError or WireError if any part of the frame is not valid.
        """
        absent = frozenset[int]()
        marked = Flag.PARTIAL in frame.flags
        weighed = Flag.WEIGHED in frame.flags
        if weighed != (self._unit is not None):
            raise WireError(f"rank {frame.sender} sent a gradient {'with' if weighed else 'without'} a weight", frame.sender)
        bodies = wire.split_group(frame.body, len(group.segments) + marked + weighed, frame.sender)
        count = wire.unpack_weight(bodies.pop(), frame.sender) / self._unit if self._unit is not None else 1.0
        if marked:
            absent = frozenset(wire.unpack_groups(bodies.pop(), self._covered[group.index], frame.sender))
        room = self._room(group.stop - group.start)
        parts = []
        for segment, body in zip(group.segments, bodies, strict=True):
            payload = self._payload(segment, body, group, frame)
            there = room[segment.start - group.start : segment.stop - group.start]
            parts.append(MeasuredPayload(segment, payload, self._codecs[segment.index].measure(payload, there)))
        return Push(math.sqrt(sum(part.measured.norm**2 for part in parts)), tuple(parts), absent, count)

    def _payload(self, segment: Segment, body: wire.Bytes, group: Group, frame: Frame) -> Payload:
        payload = Payload.from_bytes(body)
        if payload.shape != segment.shape:
            raise PayloadError(
                f"rank {frame.sender} sent segment {segment.index} as {payload.shape}, the plan has {segment.shape}"
            )
        if payload.nbytes > self._limits[segment.index]:
            raise PayloadError(
                f"rank {frame.sender} sent segment {segment.index} in {payload.nbytes} bytes, "
                f"more than the {self._limits[segment.index]} that its codec can need"
            )
        if self._merges[segment.index]:
            key = gradient_key(self._seed, ALL, frame.step, group.index, segment.index)
            if not self._codecs[segment.index].merges_with_own(payload, key):
                raise PayloadError(f"rank {frame.sender} sent segment {segment.index} as another sketch than the plan's")
        return payload

    def _room(self, size: int) -> Floats:
        """Return this thread's buffer for `size` float32 values. Its pages take no memory before values are written to them."""
        room: Floats | None = getattr(self._rooms, "values", None)
        if room is None or room.size < size:
            self._rooms.values = room = np.empty(size, np.float32)
        return room
