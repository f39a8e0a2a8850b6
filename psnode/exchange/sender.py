"""Coding and sending of a worker's gradients in a thread during back-propagation. Unused parts return to the residuals."""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes
from psnode.codecs.device.checks import Verdict
from psnode.codecs.kernels.finite import all_finite, raise_nonfinite
from psnode.codecs.sources import restore
from psnode.config.schedules import Schedule
from psnode.errors import NonFiniteGradientError, NonFinitePartError
from psnode.exchange.device.placing import place_on
from psnode.exchange.feedback_memories import FeedbackMemories
from psnode.exchange.gradients import GradientSource
from psnode.exchange.outgoing import OutgoingFrames
from psnode.exchange.segment_coder import SegmentCoder
from psnode.plans.coding import ALL, Coding, gradient_key
from psnode.plans.groups import Group, Segment
from psnode.plans.roles import MASTER, Layout
from psnode.protocol import wire
from psnode.protocol.channel import SHARD_TAG, FrameChannel, tag_of
from psnode.protocol.round import Round
from psnode.protocol.wire import Flag, Kind

_SKIPS = 3


class GradientSender:
    """Sender that codes and sends finished groups, in the order in which their indices are pushed.

    `targets`: by group, the ranks to which the group is sent. `gradients` must not change between the first push and the
    return of `drain`.

    If a group's gradient is not finite, this group and all later groups of the step are neither coded nor sent. The memories
    of these groups keep their values, except for rounding. A SKIP_STEP frame tells the master and all targets to proceed
    without these groups. The third such step in a row is an error.
    """

    def __init__(
        self,
        coding: Coding,
        link: FrameChannel,
        targets: Sequence[Sequence[int]],
        gradients: GradientSource,
        *,
        seed: int,
        lr: Schedule,
        steps_per_epoch: int,
        epoch_offset: int = 0,
        workers: int | None = None,
    ) -> None:
        self._coding = coding
        self._plan = plan = coding.plan
        self._link = link
        self._targets = targets
        self._gradients = gradients
        self._seed = seed
        self.reschedule(lr, steps_per_epoch, epoch_offset, workers or Layout.of(link.transport.size, 0).workers)
        self._phase = 0
        self._rate = self._rate_before = 0.0
        self._memories = FeedbackMemories(plan)
        self._coders = [
            [SegmentCoder(coding.segments[segment.index], memory=self._memories.vector) for segment in group.segments]
            for group in plan.groups
        ]
        self.before_change: Callable[[int], None] = lambda group: None  # called before a group's memories change
        self._frames = OutgoingFrames(link)
        self._forgotten: frozenset[int] = frozenset()
        self._sent: dict[int, tuple[Bytes, int]] = {}  # by group: the group's frame in this round, and its number of payloads
        self._round = Round(0, 0)  # before the first round
        self._seconds = 0.0
        self._nbytes = 0
        self.weight: int | None = None  # weight of this step's gradient in the mean; set between `begin` and the first push
        self._lost: tuple[float, float] | None = None
        self._skipped: NonFiniteGradientError | None = None
        self._skips = 0  # number of skipped steps in a row
        self._error: Exception | None = None
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._stream: AbstractContextManager[object] = nullcontext()  # the CUDA stream in which groups are coded
        self._thread = threading.Thread(target=self._run, name=f"encode-{link.rank}", daemon=True)
        self._thread.start()

    def code_on(self, device: torch.device) -> list[Verdict]:
        """Code segments on `device` where possible, and return the verdicts on the codecs. Call this before the first push."""
        placed = place_on(self._plan, [coder for coders in self._coders for coder in coders], device)
        self._gradients.keep(placed.names)
        if placed.stream is not None:
            self._stream = torch.cuda.stream(placed.stream)
        return placed.verdicts

    @property
    def coded_there(self) -> int:
        """Number of coordinates of the gradient that are coded on a device."""
        return sum(coder.segment.size for coders in self._coders for coder in coders if coder.on_device is not None)

    def begin(self, now: Round, *, measure: bool) -> None:
        """Begin round `now`. Groups that are pushed after this call belong to the round's gradient.

        `measure`: True if every payload is decoded again, to compute `relative_error`.
        """
        self.weight = None
        self._round, self._seconds = now, 0.0
        self._nbytes = 0
        self._sent = {}
        self._lost = (0.0, 0.0) if measure else None
        self._phase = self._coding.phase(now.finished + self._epoch_offset, self._steps_per_epoch)
        self._rate = self._lr(now.finished)
        self._rate_before = self._lr(now.finished - now.steps) if now.finished else self._rate

    def reschedule(self, lr: Schedule, steps_per_epoch: int, epoch_offset: int, workers: int) -> None:
        """From the next step on, use another learning-rate schedule and another length of an epoch.

        `steps_per_epoch` and `epoch_offset`, both in steps, determine the phase of the warm-up. `workers`: number of workers
        in the job.
        """
        self._lr = lr
        self._epoch_offset = epoch_offset
        self._steps_per_epoch = steps_per_epoch
        self._workers = workers

    @property
    def epoch_offset(self) -> int:
        """The number that is added to finished steps to count epochs (psnode.records.generations)."""
        return self._epoch_offset

    def rate(self, finished: int) -> float:
        """Return the learning rate of the step that follows `finished` steps."""
        return self._lr(finished)

    def push(self, index: int) -> None:
        """Queue group `index`, whose gradient is finished, and return immediately. Any thread may call this."""
        self._queue.put(index)

    def drain(self) -> float:
        """Wait until all groups of the step are coded and handed to the transport. Return the seconds spent on coding.

        Raises errors of coding. Raises NonFiniteGradientError if the gradients of three steps in a row are not finite.
        """
        for _ in self._plan.groups:
            self._idle.acquire()
            if self._error is not None:
                raise self._error
        self._skips = self._skips + 1 if self._skipped is not None else 0
        if self._skipped is not None and self._skips == _SKIPS:
            raise self._skipped
        self._skipped = None
        return self._seconds

    def give_back(self, step: int, groups: Collection[int]) -> None:
        """Add the payloads of `groups` in `step` back to the residuals, if any, since the master did not use these groups.

        Call this after `drain` and before the next `begin`. The call ignores groups that were not sent, and a `step` before
        the present one.
        """
        self.give_back_parts(step, dict.fromkeys(groups, np.float32(0)))

    def give_back_parts(self, step: int, factors: Mapping[int, np.float32]) -> None:
        """Return the unused parts of groups to the residuals, see `give_back`.

        `factors`: by group, the part that was used, 0 to 1. Of a group's payload the part 1 - factor returns. This number is
        float32, and so is its product with the decoded payload.
        """
        for index, factor in factors.items() if step == self._round.last_step else ():
            if (sent := self._sent.pop(index, None)) is not None:
                self.before_change(index)
                frame, payloads = sent
                coders = self._coders[index]
                parts = wire.split_group(frame[wire.HEADER_BYTES :], payloads)
                for coder, data in zip(coders, parts, strict=False):  # further parts are the absent tensors and the weight
                    codec = coder.codec(self._phase, self._round.number)
                    _put_back(coder, codec, Payload.from_bytes(data), float(np.float32(1) - factor))

    @property
    def relative_error(self) -> float | None:
        """||p - decoded|| / ||p|| over all values p that were coded in the step; None if `begin` was called without `measure`."""
        return None if self._lost is None else math.sqrt(self._lost[0] / self._lost[1]) if self._lost[1] else 0.0

    @property
    def nbytes(self) -> int:
        """Size in bytes of the frames that the step has sent to other ranks. Valid after `drain`."""
        return self._nbytes

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def state(self) -> dict[str, torch.Tensor]:
        """Return views of all segments' memories for a checkpoint, by memory and tensor (psnode.records.state_names)."""
        return self._memories.state([coder for coders in self._coders for coder in coders])

    def memory(self) -> list[list[torch.Tensor]]:
        """Return, by group, the arrays of `state` that change when the group is pushed or its payload returns to a residual."""
        arrays = ([array for coder in coders for array in (*coder.state.values(), coder.codebook)] for coders in self._coders)
        return [[torch.from_numpy(array) for array in found] for found in arrays]

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Load the result of `state`, even if another plan has written it.

        Raises CheckpointError if it belongs to another model or feedback rule.
        """
        self._memories.load([coder for coders in self._coders for coder in coders], tensors)

    def _run(self) -> None:
        while (index := self._queue.get()) is not None:
            start = time.perf_counter()
            try:
                if self._error is None and self._skipped is None:
                    with self._stream:
                        self._send(self._plan.groups[index])
            except Exception as error:  # `drain` raises it in the training thread
                self._error = error
            self._seconds += time.perf_counter() - start
            self._idle.release()

    def _send(self, group: Group) -> None:
        coders = self._coders[group.index]
        codecs = [coder.codec(self._phase, self._round.number) for coder in coders]
        absent = self._gradients.absent(group.start, group.stop)
        mark = wire.pack_groups(absent, len(self._plan.covering(group.start, group.stop))) if absent else b""
        weight = b"" if self.weight is None else wire.pack_weight(self.weight)
        more = [part for part in (mark, weight) if part]
        room = sum(wire.padded(coder.max_nbytes) for coder in coders) + sum(wire.padded(len(part)) for part in more)
        frame = self._frames.begin(group.index, len(coders) + len(more), room)
        done: list[tuple[SegmentCoder, Codec, Payload]] = []
        self.before_change(group.index)
        try:
            pairs = list(zip(coders, codecs, strict=True))
            fitted = any(codec.traits.refit > 1 for codec in codecs)  # a fit cannot be undone
            for coder, _ in pairs:
                segment = coder.segment
                if coder.on_device is not None:
                    coder.on_device.check(self._gradients.pieces(segment.start, segment.stop))
                elif fitted or not coder.feedback.sums:  # otherwise coding finds values that are not finite, and is undone
                    self._check(segment)
            for coder, codec in pairs:
                segment = coder.segment
                payload = self._code(group, coder, codec, frame.room)
                done.append((coder, codec, payload))
                frame.take(payload.nbytes)
        except NonFinitePartError as error:
            for coder, codec, payload in done:
                self._undo(coder, codec, payload)
            self._skipped = NonFinitePartError(segment.start + error.index, error.value)
            self._tell_of_the_skip(str(self._skipped).encode())
            return
        for part in more:
            frame.room[: len(part)] = np.frombuffer(part, np.uint8)
            frame.take(len(part))
        flags = (Flag.PARTIAL if mark else Flag.NONE) | (Flag.WEIGHED if weight else Flag.NONE)
        roots, now = self._present(self._targets[group.index]), self._round
        tag = tag_of(roots[0])
        sealed = self._frames.send(group.index, frame, roots, Kind.GRADIENT, now.last_step, now.version, flags, tag=tag)
        self._sent[group.index] = sealed, len(coders) + len(more)
        self._nbytes += sealed.size * sum(root != self._link.rank for root in roots)

    def forget(self, rank: int) -> None:
        """From now on, send nothing to `rank`. Its groups must also have other targets. Any thread may call this."""
        self._forgotten |= {rank}

    def _present(self, ranks: Sequence[int]) -> Sequence[int]:
        return [rank for rank in ranks if rank not in self._forgotten] if self._forgotten else ranks

    def _tell_of_the_skip(self, reason: bytes) -> None:
        """Tell the master and the shards that no more gradients of this step follow, after the frames already sent to them."""
        shards = self._present(sorted({root for roots in self._targets for root in roots} - {MASTER}))
        for ranks, tag in ((MASTER, None), *(((shards, SHARD_TAG),) if shards else ())):
            self._link.send(ranks, Kind.SKIP_STEP, reason, step=self._round.last_step, version=self._round.version, tag=tag)

    def _check(self, segment: Segment) -> None:
        """Raise NonFinitePartError for the first coordinate of the segment's gradient that is not finite."""
        for place, part in self._gradients.parts(segment.start, segment.stop):
            if not all_finite(part):
                raise_nonfinite(part, place, NonFinitePartError)

    def _undo(self, coder: SegmentCoder, codec: Codec, payload: Payload) -> None:
        """Restore a segment's memory to its values before the push: `payload` is added to it, and the gradient is subtracted."""
        if coder.feedback.memory is not None:
            parts = self._gradients.parts(coder.segment.start, coder.segment.stop)
            decoded = codec.decode(payload).reshape(-1)
            restore(coder.state[coder.feedback.memory], parts, coder.segment.size, decoded)

    def _code(self, group: Group, coder: SegmentCoder, codec: Codec, out: Bytes) -> Payload:
        segment = coder.segment
        rank = ALL if coder.feedback.merges(codec) else self._link.rank
        key = gradient_key(self._seed, rank, self._round.last_step, group.index, segment.index)
        context = coder.context(self._workers, self._rate, self._rate_before)
        if coder.on_device is not None:
            pieces = self._gradients.pieces(segment.start, segment.stop)
            payload = coder.on_device.push(pieces, codec, key, out, context)
        else:
            gradient, payload = coder.push(self._gradients, codec, key, out, context)
            coder.fit(gradient, payload, key, self._phase, self._round.number)
        if self._lost is not None:
            if coder.on_device is not None:
                gradient = self._gradients.flat(segment.start, segment.stop).reshape(segment.shape)
            error, energy = coder.feedback.lost(gradient, coder.state, codec.decode(payload))
            self._lost = self._lost[0] + error, self._lost[1] + energy
        return payload


def _put_back(coder: SegmentCoder, codec: Codec, payload: Payload, weight: float = 1.0) -> None:
    """Add the decoded `payload`, times `weight`, back to the residual from which it was subtracted, if there is a residual."""
    if coder.feedback.memory is not None:
        codec.decode_add(payload, coder.state[coder.feedback.memory], weight)
