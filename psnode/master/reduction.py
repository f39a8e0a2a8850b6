"""From a group's coded gradients to its new weights on their way down."""

from __future__ import annotations

import threading
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode import wire
from psnode.codecs import Payload, get_codec
from psnode.codecs.kernels.dots import inner_products
from psnode.codecs.rng import Key
from psnode.errors import CodecError, PayloadError, PsnodeError, WireError
from psnode.feedback import get_feedback
from psnode.history import Added
from psnode.master.accounts import Stopwatch
from psnode.master.aggregator import get_aggregator
from psnode.master.clipping import Clipped, Clipping
from psnode.master.downlink import Downlink, smallest
from psnode.master.lanes import Lanes
from psnode.master.parameters import Constraint, Parameters
from psnode.plan import ALL, Group, Plan, Segment, gradient_key
from psnode.schemes import Scheme, phases
from psnode.timeline import Tracer
from psnode.wire import Flag, Frame

Floats = npt.NDArray[np.float32]
_PURPOSE = "vote"


class GroupClosed(NamedTuple):
    """An event in the master's inbox: `group` was brought to `version` by what was `added`; `nbytes` were sent.

    `clipped`: those of the added pushes of which a part was left out.
    """

    group: int
    version: int
    nbytes: int
    added: tuple[Added, ...]
    clipped: tuple[Clipped, ...] = ()


class Refused(NamedTuple):
    """An event in the master's inbox: what rank `sender` sent for `group` cannot be decoded."""

    group: int
    sender: int
    error: PsnodeError


class Reduction:
    """Adds frames to one accumulator as long as the model, updates and sends: in lanes, in the order of submission.

    A `constraint` is put on the weights when all groups are updated; none is sent before.
    """

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
        constraint: Constraint | None = None,
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
        self._constraint = constraint
        self._closing = threading.Lock()
        self._updated: dict[int, tuple[Added, ...]] = {}  # groups that wait for the others, with what was added to them
        self._sum = np.zeros(plan.size, np.float32)
        codecs = [get_codec(segment.codec) for segment in plan.segments]
        self._codecs = [codec if codec.lossless else feedback.form(codec) for codec in codecs]
        self._merges = [self._aggregator.merges and feedback.merges(codec) for codec in self._codecs]
        self._limits = [
            max(feedback.form(get_codec(spec)).max_nbytes(segment.shape) for spec in phases(segment.codec, scheme.ratio_warmup))
            for segment in plan.segments
        ]
        self._merged: dict[tuple[int, int], tuple[Payload, float]] = {}
        self._clipping = Clipping(self._codecs, len(plan.groups)) if self._aggregator.clips else None
        self._clipped: list[tuple[Clipped, ...]] = [()] * len(plan.groups)  # of the rounds that are being closed
        self.rescales = feedback.rescales
        self.returns = feedback.memory is not None  # what is not used of a push
        self._added: list[list[Added]] = [[] for _ in plan.groups]
        self._absent: list[list[set[int]]] = [[] for _ in plan.groups]  # beside them: tensors that had no gradient there
        self._covered = [list(plan.covering(group.start, group.stop).values()) for group in plan.groups]
        self._remembers = feedback.memory is not None
        self._spoilt = set[int]()  # groups whose sum holds a part of a frame

    def warm_up(self) -> None:
        """Compile the kernels, without touching any memory."""
        for segment, codec in smallest(self._plan.segments, self._codecs):
            gradient = np.random.default_rng(0).standard_normal(segment.shape).astype(np.float32)
            self._aggregator.add(codec, codec.encode(gradient, Key.derive(0)), gradient.reshape(-1))
            self._aggregator.finish(gradient.reshape(-1), 1, Key.derive(0))
            inner_products(gradient.reshape(-1), gradient.reshape(-1))
        self._downlink.warm_up()

    def add(self, frame: Frame, weight: float = 1.0) -> None:
        """Queue a gradient frame's payloads for addition, each times `weight`: one weight a step."""
        group = self._plan.groups[frame.group]
        self._lanes.submit(group.index, partial(self._add, group, frame, weight))

    def close(self, index: int, version: int, lr: float) -> None:
        """Queue the update of a group with the gradients added, if there are any, and the sending of its `version`."""
        self._lanes.submit(index, partial(self._close, self._plan.groups[index], version, lr))

    def _add(self, group: Group, frame: Frame, weight: float) -> Refused | None:
        """Add all of a frame's payloads or, if one of them is none, nothing of the group in this round.

        A codec that raises has not touched the sum, but the payloads before it are in there. What is clipped is added later.
        """
        touched = held = False
        with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=frame.sender):
            try:
                payloads, absent = self._payloads(group, frame)
                if self._clipping is not None:
                    self._clipping.hold(frame, payloads, weight)
                    held = True
                for segment, payload in () if held else payloads:
                    self._add_payload(segment, payload, frame.step, weight)
                    touched = True
            except (CodecError, WireError) as error:
                if touched:
                    self._spoilt.add(group.index)
                return Refused(group.index, frame.sender, error)
            finally:
                if not held:
                    frame.release()
        self._added[group.index].append(Added(frame.sender, frame.step, frame.version))
        self._absent[group.index].append(absent)
        return None

    def _payloads(self, group: Group, frame: Frame) -> tuple[list[tuple[Segment, Payload]], set[int]]:
        """What a frame holds, and which tensors of the group had no gradient."""
        found, absent = [], set[int]()
        marked = Flag.PARTIAL in frame.flags
        parts = wire.split_group(frame.body, len(group.segments) + marked, frame.sender)
        if marked:
            absent = set(wire.unpack_groups(parts.pop(), len(self._covered[group.index]), frame.sender))
        for segment, data in zip(group.segments, parts, strict=True):
            payload = Payload.from_bytes(data)
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
            found.append((segment, payload))
        return found, absent

    def _add_payload(self, segment: Segment, payload: Payload, step: int, weight: float) -> None:
        """Add it decoded, or, if it can be merged, to what waits of its step, to be decoded once when the group closes."""
        codec = self._codecs[segment.index]
        if self._merges[segment.index]:
            earlier = self._merged.get((segment.index, step))
            self._merged[segment.index, step] = codec.merge([payload] if earlier is None else [earlier[0], payload]), weight
        else:
            self._aggregator.add(codec, payload, self._sum[segment.start : segment.stop], weight)

    def _add_merged(self, group: Group) -> None:
        """Decode what was merged since the group was last closed."""
        segments = {segment.index: segment for segment in group.segments}
        for index, step in sorted(key for key in tuple(self._merged) if key[0] in segments):
            segment, (payload, weight) = segments[index], self._merged.pop((index, step))
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, segment=index):
                self._aggregator.add(self._codecs[index], payload, self._sum[segment.start : segment.stop], weight)

    def _add_clipped(self, group: Group) -> None:
        """Add what was kept since the group was last closed, each push with its factor."""
        found = []
        for push, factor in self._clipping.take(group.index) if self._clipping is not None else ():
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=push.frame.sender):
                for segment, payload in push.parts:
                    there = self._sum[segment.start : segment.stop]
                    self._aggregator.add(self._codecs[segment.index], payload, there, push.weight * factor)
            if factor < 1:
                found.append(Clipped(push.frame.sender, push.frame.step, factor))
            push.frame.release()
        self._clipped[group.index] = tuple(found)

    def _close(self, group: Group, version: int, lr: float) -> list[GroupClosed]:
        added = self._update(group, version, lr)
        if self._constraint is None:
            return [self._publish(group, version, added)]
        with self._closing:
            self._updated[group.index] = added
            if len(self._updated) < len(self._plan.groups):
                return []
            everything, self._updated = self._updated, {}
        with self._watch.timing("update"), self._tracer.span("constrain", version=version):
            self._parameters.constrain(self._constraint)
        return [self._publish(group, version, everything[group.index]) for group in reversed(self._plan.groups)]

    def _update(self, group: Group, version: int, lr: float) -> tuple[Added, ...]:
        added, absent = self._take(group)
        gradient = self._sum[group.start : group.stop]
        idle = self._idle(group, gradient, absent)
        with self._watch.timing("update"), self._tracer.span("update", group=group.index, version=version):
            if added:
                key = Key.derive(self._seed, _PURPOSE, 0, version, group.index, 0)
                factor = self._aggregator.finish(gradient, len(added), key)
                self._parameters.update(group.index, gradient, factor, lr, idle)
            else:
                gradient[:] = 0
        return added

    def _publish(self, group: Group, version: int, added: tuple[Added, ...]) -> GroupClosed:
        with self._watch.timing("downlink"), self._tracer.span("downlink", group=group.index, version=version):
            nbytes = self._downlink.send(group, version)
        return GroupClosed(group.index, version, nbytes, added, self._clipped[group.index])

    def _idle(self, group: Group, gradient: Floats, absent: set[int]) -> list[slice]:
        """The ranges of a group whose tensors nobody had a gradient of, for the optimizer to leave alone as torch does.

        Not where memories are kept and some of one has come: that is a gradient of earlier steps.
        """
        found = []
        for index in sorted(absent):
            place = self._covered[group.index][index]
            where = slice(max(place.start, group.start) - group.start, min(place.stop, group.stop) - group.start)
            if not (self._remembers and gradient[where].any()):
                found.append(where)
        return found

    def _take(self, group: Group) -> tuple[tuple[Added, ...], set[int]]:
        """Which gradients the group's sum holds, complete, and the tensors that all of them lack; none if it was spoilt."""
        try:
            self._add_clipped(group)
            self._add_merged(group)
        except CodecError:  # merged payloads say no more who sent them
            self._spoilt.add(group.index)
        added, self._added[group.index] = tuple(self._added[group.index]), []
        absent, self._absent[group.index] = self._absent[group.index], []
        if group.index in self._spoilt:
            self._spoilt.discard(group.index)
            return (), set()
        return added, set.intersection(*absent) if absent else set()
