"""From a group's coded gradients to its new weights on their way down."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch

from psnode import wire
from psnode.codecs import Payload, get_codec
from psnode.codecs.rng import Key
from psnode.errors import PayloadError
from psnode.feedback import get_feedback
from psnode.master.accounts import Stopwatch
from psnode.master.aggregator import get_aggregator
from psnode.master.downlink import Downlink
from psnode.master.lanes import Lanes
from psnode.master.parameters import Parameters
from psnode.plan import Group, Plan, Segment
from psnode.schemes import Scheme
from psnode.timeline import Tracer
from psnode.wire import Frame

_PURPOSE = "vote"


class GroupClosed(NamedTuple):
    """An event in the master's inbox: `group` was updated to `version` and `nbytes` of frames were sent."""

    group: int
    version: int
    nbytes: int


class Reduction:
    """Adds frames to one accumulator as long as the model, updates and sends: in lanes, in the order of submission."""

    def __init__(
        self,
        plan: Plan,
        scheme: Scheme,
        parameters: Parameters,
        downlink: Downlink,
        lanes: Lanes,
        watch: Stopwatch,
        tracer: Tracer,
        *,
        seed: int,
    ) -> None:
        feedback = get_feedback(scheme.feedback)
        self._plan = plan
        self._aggregator = get_aggregator(scheme.aggregator)
        self._parameters = parameters
        self._downlink = downlink
        self._lanes = lanes
        self._watch = watch
        self._tracer = tracer
        self._seed = seed
        self._sum = np.zeros(plan.size, np.float32)
        codecs = [get_codec(segment.codec) for segment in plan.segments]
        self._codecs = [codec if codec.lossless else feedback.form(codec) for codec in codecs]
        self._merged: dict[tuple[int, int], Payload] = {}

    def add(self, frame: Frame) -> None:
        """Queue a gradient frame's payloads for addition."""
        group = self._plan.groups[frame.group]
        self._lanes.submit(group.index, partial(self._add, group, frame))

    def close(self, index: int, version: int, count: int, lr: float) -> None:
        """Queue the update of a group with the `count` gradients added, and the sending of its `version`."""
        self._lanes.submit(index, partial(self._close, self._plan.groups[index], version, count, lr))

    def _add(self, group: Group, frame: Frame) -> None:
        with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=frame.sender):
            parts = wire.split_group(frame.body, len(group.segments), frame.sender)
            for segment, data in zip(group.segments, parts, strict=True):
                payload = Payload.from_bytes(data)
                if payload.shape != segment.shape:
                    raise PayloadError(
                        f"rank {frame.sender} sent segment {segment.index} as {payload.shape}, the plan has {segment.shape}"
                    )
                self._add_payload(segment, payload, frame.step)
            frame.release()

    def _add_payload(self, segment: Segment, payload: Payload, step: int) -> None:
        """Add it decoded, or, if it can be merged, to what waits of its step, to be decoded once when the group closes."""
        codec = self._codecs[segment.index]
        if codec.linear and self._aggregator.merges:
            earlier = self._merged.get((segment.index, step))
            self._merged[segment.index, step] = codec.merge([payload] if earlier is None else [earlier, payload])
        else:
            self._aggregator.add(codec, payload, self._sum[segment.start : segment.stop])

    def _add_merged(self, group: Group) -> None:
        """Decode what was merged since the group was last closed."""
        segments = {segment.index: segment for segment in group.segments}
        for index, step in sorted(key for key in tuple(self._merged) if key[0] in segments):
            segment, payload = segments[index], self._merged.pop((index, step))
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, segment=index):
                self._aggregator.add(self._codecs[index], payload, self._sum[segment.start : segment.stop])

    def _close(self, group: Group, version: int, count: int, lr: float) -> GroupClosed:
        gradient = self._sum[group.start : group.stop]
        self._add_merged(group)
        with self._watch.timing("update"), self._tracer.span("update", group=group.index, version=version):
            self._aggregator.finish(gradient, count, Key.derive(self._seed, _PURPOSE, 0, version, group.index, 0))
            self._parameters.update(group.index, torch.from_numpy(gradient), lr)
            gradient[:] = 0
        with self._watch.timing("downlink"), self._tracer.span("downlink", group=group.index, version=version):
            nbytes = self._downlink.send(group, version)
        return GroupClosed(group.index, version, nbytes)
