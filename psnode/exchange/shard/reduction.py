"""Reduction: the coded gradients of a group become new weights, which are sent to the workers."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch

from psnode.codecs import Payload
from psnode.codecs.rng import Key
from psnode.config.effects import MAJORITY
from psnode.errors import CodecError, NormError, WireError
from psnode.exchange.shard.aggregator import Aggregator
from psnode.exchange.shard.arithmetic import Arithmetic
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.shard.executor import GroupExecutor
from psnode.exchange.shard.global_norm_clipping import GlobalNorm, Summed
from psnode.exchange.shard.median_clipping import Clipped, Clipping
from psnode.exchange.shard.norm_verdicts import Beyond, Closing, Judge
from psnode.exchange.shard.pushes import MeasuredPayload, Push, Reader
from psnode.exchange.shard.shard_events import GroupClosed, NotApplied, Refused, Scaled
from psnode.exchange.stopwatch import Stopwatch
from psnode.exchange.update.moving_average import MovingAverage
from psnode.exchange.update.weight_vector import Constraint, Weights
from psnode.plans.coding import Coding
from psnode.plans.groups import Group
from psnode.plans.part import PlanPart
from psnode.protocol.wire import Frame
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import AddedGradient
from psnode.records.timeline import Tracer

_PURPOSE = "vote"
_LARGEST = float(np.finfo(np.float32).max) / 2  # a sum of pushes is finite if their norms add up to at most this


class Reduction:
    """Reduction that adds gradient frames of the groups of `part` to the sums of `arithmetic`, updates weights and sends them.

    The work is done in lanes, for each group in the order of submission. With a `constraint`, no group is sent until all
    groups are updated and the constraint is applied to the weights.

    If a gradient's norm is out of proportion under the rule `norm_cap` (psnode.exchange.shard.norm_verdicts), the gradient's
    suspicious pushes are refused. They are scaled down instead if a usual norm is known and the rest can return to a residual.
    Suspicious pushes wait until the pushes of all groups in the round have come. A `global_norm` clips the sums, which may have
    to wait until the sums of all groups are complete. With a `weight_unit`, frames state the weight of their gradient.
    `average`: a moving average of the weights, or None.
    """

    def __init__(
        self,
        part: PlanPart,
        coding: Coding,
        weights: Weights,
        aggregator: Aggregator,
        arithmetic: Arithmetic,
        downlink: Downlink,
        lanes: GroupExecutor,
        watch: Stopwatch,
        tracer: Tracer,
        *,
        seed: int,
        constraint: Constraint | None = None,
        norm_cap: float | None = None,
        global_norm: GlobalNorm | None = None,
        average: MovingAverage | None = None,
        weight_unit: int | None = None,
    ) -> None:
        feedback = coding.feedback
        self._groups = groups = part.groups
        self._codecs = codecs = coding.up
        self._arithmetic = arithmetic
        self._weights = weights
        self._downlink = downlink
        self._lanes = lanes
        self._watch = watch
        self._tracer = tracer
        self._seed = seed
        self._constraint = constraint
        self._global_norm = global_norm
        self._average = average
        self.before_change: Callable[[int], None] = lambda group: None  # called in a lane before x, y and memories change
        self._closing = threading.Lock()
        self._updated: dict[int, tuple[AddedGradient, ...]] = {}  # the added pushes, by group that waits for other groups
        self._merges = [aggregator.merges and segment.merges for segment in coding.segments]
        self._merged: dict[tuple[int, int], tuple[Payload, float]] = {}
        self._clipping = Clipping(codecs, groups) if aggregator.clips else None
        self._clipped: dict[int, tuple[Clipped, ...]] = dict.fromkeys(groups, ())  # by group, for the round that closes
        self._scaled: dict[int, list[Clipped]] = {group: [] for group in groups}
        self.rescales = feedback.rescales
        self._added: dict[int, list[AddedGradient]] = {group: [] for group in groups}
        self._counts: dict[int, list[float]] = {group: [] for group in groups}  # for each of `_added`, its Push.counts_as
        self._absent: dict[int, list[frozenset[int]]] = {group: [] for group in groups}  # for each of `_added`, its Push.absent
        self._reader = Reader(part.own, codecs, coding.limits, self._merges, seed, weight_unit)
        self._judge = Judge(part, None if coding.scheme.aggregator == MAJORITY else norm_cap)  # all votes count the same
        self._most = dict.fromkeys(groups, 0.0)  # by group, a bound on the coordinates of the group's sum
        self._suspects: dict[int, list[tuple[Frame, float]]] = {group: [] for group in groups}  # suspicious frames and weights
        self._covered = {index: list(part.own.covering(group.start, group.stop).values()) for index, group in groups.items()}
        self._remembers = feedback.memory is not None

    def add(self, frame: Frame, weight: float = 1.0) -> None:
        """Queue the addition of a gradient frame's payloads, times `weight`. All frames of a step must have the same weight."""
        group = self._groups[frame.group]
        self._lanes.submit(group.index, partial(self._add, group, frame, weight))

    def close(self, index: int, version: int, lr: float, *, alone: bool = False) -> None:
        """Queue the update of a group with the gradients added to it, if any, and the sending of the group's `version`.

        `alone`: True if at most one worker takes part in the job.
        """
        self._lanes.submit(index, partial(self._hear, Closing(index, version, lr), alone))

    def take_up(self, found: Checkpoint | None) -> None:
        """Load the norms of a checkpoint, with which later pushes are compared."""
        self._judge.take_up(found)

    def norms(self) -> dict[str, torch.Tensor]:
        """Return the norms with which later pushes are compared, for a checkpoint. Call this while no group is open."""
        return dict(self._judge.state())

    def outlier(self) -> str:
        """Return a line about a push that was applied although its norm is out of proportion; "" if there is no such push."""
        return self._judge.outlier()

    def _add(self, group: Group, frame: Frame, weight: float) -> Refused | None:
        """Add all parts of a frame, or no part if one of them cannot be decoded. Hold back a push whose norm is suspicious."""
        with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=frame.sender):
            try:
                push = self._reader.read(group, frame)
            except (CodecError, WireError) as error:
                frame.release()
                return Refused(group.index, frame.sender, error)
            if self._judge.suspects(group.index, frame.sender, frame.step, push.norm):
                self._suspects[group.index].append((frame, weight))
            else:
                self._add_push(group, frame, push, weight)
        return None

    def _add_push(self, group: Group, frame: Frame, push: Push, weight: float, factor: float = 1.0) -> None:
        """Add a push, times `factor`. With clipping to the median, hold it until its round closes."""
        if self._clipping is not None:
            self._clipping.hold(frame, push, weight)
        elif factor < 1:
            for part in push.parts:
                self._arithmetic.add_payload(part.segment, part.payload, weight * factor)
            self._scaled[group.index].append(Clipped(frame.sender, frame.step, factor))
            frame.release()
        else:
            for part in push.parts:
                self._add_part(part, frame.step, weight)
            frame.release()
        self._most[group.index] += abs(weight) * push.norm * factor
        self._added[group.index].append(AddedGradient(frame.sender, frame.step, frame.version))
        self._counts[group.index].append(push.counts_as)
        self._absent[group.index].append(push.absent)

    def _hear(self, closing: Closing, alone: bool) -> list[GroupClosed | Refused | NotApplied | Scaled]:
        """Close a group unless it waits for verdicts.

        If the verdicts of the round are complete now, also close the groups that waited.
        """
        ready = self._judge.hear(closing, waits=bool(self._suspects[closing.group]), alone=alone)
        for each in ready:
            if each.group != closing.group:
                self._lanes.submit(each.group, partial(self._close, each))
        return [event for each in ready if each.group == closing.group for event in self._close(each)]

    def _settle(self, group: Group) -> list[Refused | Scaled]:
        """Add the group's suspicious pushes whole, or scaled, or not at all.

        The verdict on the worker's whole gradient decides on each push.
        """
        suspects, self._suspects[group.index] = self._suspects[group.index], []
        events: list[Refused | Scaled] = []
        for frame, weight in suspects:
            beyond = self._judge.verdicts.get((frame.sender, frame.step))
            factor = 1.0 if beyond is None else self._factor(group, beyond)
            if beyond is not None:
                error = NormError(frame.sender, frame.step, beyond.group, beyond.norm, beyond.bound, factor)
                kind = Scaled if factor else Refused
                events.append(kind(group.index, frame.sender, error))
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=frame.sender):
                if factor:
                    self._add_push(group, frame, self._reader.read(group, frame), weight, factor)
                else:
                    frame.release()
        return events

    def _factor(self, group: Group, beyond: Beyond) -> float:
        """Return the part (0 to 1) of a push that counts although the norm of its gradient is out of bounds.

        It is 0 if no usual norm is known, or if the rest of the push could not return to a residual.
        """
        if not self._remembers or not beyond.usual or any(self._merges[segment.index] for segment in group.segments):
            return 0.0
        return float(np.float32(beyond.usual / beyond.norm))

    def _add_part(self, part: MeasuredPayload, step: int, weight: float) -> None:
        """Decode and add a part of a push, or merge it with the other parts of its step if parts of its segment are merged.

        A merged part is decoded when the group is closed.
        """
        segment, payload, _ = part
        if self._merges[segment.index]:
            earlier, codec = self._merged.get((segment.index, step)), self._codecs[segment.index]
            self._merged[segment.index, step] = codec.merge([payload] if earlier is None else [earlier[0], payload]), weight
        else:
            self._arithmetic.add(part, weight)

    def _add_merged(self, group: Group) -> None:
        """Decode and add the payloads that have been merged since the group was last closed."""
        segments = {segment.index: segment for segment in group.segments}
        for index, step in sorted(key for key in tuple(self._merged) if key[0] in segments):
            segment, (payload, weight) = segments[index], self._merged.pop((index, step))
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, segment=index):
                self._arithmetic.add_payload(segment, payload, weight)

    def _add_clipped(self, group: Group) -> None:
        """Add the pushes that have been held since the group was last closed, each times its factor."""
        found = []
        for (frame, push, weight, _), factor in self._clipping.take(group.index) if self._clipping is not None else ():
            with self._watch.timing("decode"), self._tracer.span("decode", group=group.index, sender=frame.sender):
                for part in push.parts:
                    self._arithmetic.add_payload(part.segment, part.payload, weight * factor)
            if factor < 1 and self._remembers:
                found.append(Clipped(frame.sender, frame.step, factor))
            frame.release()
        scaled, self._scaled[group.index] = self._scaled[group.index], []
        self._clipped[group.index] = (*found, *scaled)

    def _close(self, closing: Closing) -> list[GroupClosed | Refused | NotApplied | Scaled]:
        group, version, lr = self._groups[closing.group], closing.version, closing.lr
        events: list[GroupClosed | Refused | NotApplied | Scaled] = [*self._settle(group)]
        summed, problems = self._finish(group, version)
        events += problems
        if self._global_norm is None:
            return [*events, *self._move(group, version, lr, summed)]
        with self._watch.timing("update"), self._tracer.span("norm", group=group.index, version=version):
            clipped = self._global_norm.offer(group.index, self._arithmetic.total(group), summed)
        own = clipped.pop(group.index, None)
        self.move(clipped, version, lr)
        return events if own is None else [*events, *self._move(group, version, lr, own)]

    def move(self, summed: Mapping[int, Summed], version: int, lr: float) -> None:
        """Queue the updates of groups whose sums are complete and clipped."""
        for index, each in summed.items():
            self._lanes.submit(index, partial(self._move, self._groups[index], version, lr, each))

    def _finish(self, group: Group, version: int) -> tuple[Summed, list[NotApplied]]:
        """Complete the group's sum, and return it with its facts.

        Set the sum to 0 if nothing was added or if it is not finite.
        """
        added, count, absent, sound = self._take(group)
        problems = []
        if not sound:
            problems = [NotApplied(group.index, tuple(each.rank for each in added))]
            added, absent = (), frozenset()
        if not count:  # all weights are 0: there is no mean
            added = ()
        idle = self._idle(group, absent)
        factor = 1.0
        with self._watch.timing("update"), self._tracer.span("finish", group=group.index, version=version):
            if added:
                key = Key.derive(self._seed, _PURPOSE, 0, version, group.index, 0)
                factor = self._arithmetic.finish(group, count, key)
            else:
                self._arithmetic.clear(group)
        return Summed(added, factor, idle), problems

    def _move(self, group: Group, version: int, lr: float, summed: Summed) -> list[GroupClosed]:
        """Update a group's weights and send them. With a constraint, all groups are sent when the last group is updated."""
        with self._tracer.span("protect", group=group.index, version=version):
            self.before_change(group.index)
        self._downlink.hold(group)
        if summed.added:
            with self._watch.timing("update"), self._tracer.span("update", group=group.index, version=version):
                self._arithmetic.update(group, summed.factor, lr, summed.idle)
        if self._constraint is None:
            return [self._publish(group, version, summed.added)]
        with self._closing:
            self._updated[group.index] = summed.added
            if len(self._updated) < len(self._groups):
                return []
            everything, self._updated = self._updated, {}
        with self._watch.timing("update"), self._tracer.span("constrain", version=version):
            self._weights.constrain(self._constraint)
        return [self._publish(group, version, everything[group.index]) for group in reversed(self._groups.values())]

    def _publish(self, group: Group, version: int, added: tuple[AddedGradient, ...]) -> GroupClosed:
        if self._average is not None:
            with self._watch.timing("update"), self._tracer.span("average", group=group.index, version=version):
                self._average.move(group.index)
        with self._watch.timing("downlink"), self._tracer.span("downlink", group=group.index, version=version):
            nbytes = self._downlink.send(group, version)
        return GroupClosed(group.index, version, nbytes, added, self._clipped[group.index])

    def _idle(self, group: Group, absent: frozenset[int]) -> list[slice]:
        """Return the ranges of a group whose tensors have no gradient from any worker. The optimizer skips them, as in torch.

        If senders keep residuals, a range without a gradient in this step may contain gradients of earlier steps. Such a
        range, whose sum is not zero, is not returned.
        """
        found = []
        for index in sorted(absent):
            place = self._covered[group.index][index]
            where = slice(max(place.start, group.start) - group.start, min(place.stop, group.stop) - group.start)
            if not (self._remembers and not self._arithmetic.is_zero(group, where)):
                found.append(where)
        return found

    def _take(self, group: Group) -> tuple[tuple[AddedGradient, ...], float, frozenset[int], bool]:
        """Complete the group's sum, and reset its records for the next round.

        Returns the gradients in the sum, the sum of their weights (Push.counts_as), the tensors without a gradient from any
        worker, and True if the sum is finite.
        """
        added, self._added[group.index] = tuple(self._added[group.index]), []
        counts, self._counts[group.index] = self._counts[group.index], []
        absent, self._absent[group.index] = self._absent[group.index], []
        most, self._most[group.index] = self._most[group.index], 0.0
        try:
            self._add_clipped(group)
            self._add_merged(group)
        except CodecError:  # the sender of a merged payload is no longer known
            most = math.inf
        sound = most <= _LARGEST or (most < math.inf and self._arithmetic.is_finite(group))
        return added, sum(counts), frozenset.intersection(*absent) if absent else frozenset(), sound
