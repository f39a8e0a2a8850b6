"""Coding and sending a worker's gradients, in a thread of its own beside back-propagation; unused parts return."""

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
from psnode.exchange.gradients import Gradients
from psnode.exchange.outgoing import OutgoingFrames
from psnode.exchange.routes import MASTER, Layout
from psnode.exchange.segment_coder import SegmentCoder
from psnode.plan.coding import ALL, Coding, gradient_key
from psnode.plan.groups import Group, Segment
from psnode.protocol import wire
from psnode.protocol.channel import FrameChannel
from psnode.protocol.wire import Flag, Kind

_SKIPS = 3


class GradientSender:
    """Takes indices of finished groups, codes and sends them in that order. `targets`: by group, the rank that it goes to.

    `gradients` must not change until `drain` has returned. From the first group of
    a step whose gradient is not finite, none is coded or sent any more, and their memories stay as they were (but for
    rounding): the master is told to go on without. Three such steps in a row are an error.
    """

    def __init__(
        self,
        coding: Coding,
        link: FrameChannel,
        targets: Sequence[int],
        gradients: Gradients,
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
        self.before_change: Callable[[int], None] = lambda group: None  # told that the memories of a group change next
        self._frames = OutgoingFrames(link)
        self._sent: dict[int, tuple[Bytes, int]] = {}  # the frames of this step and their numbers of payloads, by group
        self._step = 0
        self._version = 0
        self._seconds = 0.0
        self._nbytes = 0
        self.weight: int | None = None  # of the step in the mean, if gradients have one; before the first group is pushed
        self._lost: tuple[float, float] | None = None
        self._skipped: NonFiniteGradientError | None = None
        self._skips = 0  # steps in a row
        self._error: Exception | None = None
        self._queue: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._stream: AbstractContextManager[object] = nullcontext()  # that groups are coded on
        self._thread = threading.Thread(target=self._run, name=f"encode-{link.rank}", daemon=True)
        self._thread.start()

    def code_on(self, device: torch.device) -> list[Verdict]:
        """Code on `device` from now on where it can, before the first group. Returns the verdicts on the codecs."""
        placed = place_on(self._plan, [coder for coders in self._coders for coder in coders], device)
        self._gradients.keep(placed.names)
        if placed.stream is not None:
            self._stream = torch.cuda.stream(placed.stream)
        return placed.verdicts

    @property
    def coded_there(self) -> int:
        """Coordinates of the gradient that are coded on a device."""
        return sum(coder.segment.size for coders in self._coders for coder in coders if coder.on_device is not None)

    def begin(self, step: int, version: int, *, measure: bool) -> None:
        """The groups to come belong to `step` and were computed on weights of `version`.

        `measure`: decode every payload once more, for `relative_error`.
        """
        self.weight = None
        self._step, self._version, self._seconds = step, version, 0.0
        self._nbytes = 0
        self._sent = {}
        self._lost = (0.0, 0.0) if measure else None
        self._phase = self._coding.phase(step - 1 + self._epoch_offset, self._steps_per_epoch)
        self._rate = self._lr(step - 1)
        self._rate_before = self._lr(step - 2) if step > 1 else self._rate

    def reschedule(self, lr: Schedule, steps_per_epoch: int, epoch_offset: int, workers: int) -> None:
        """From the next step on, take the learning rate from `lr` and count epochs for `workers` workers."""
        self._lr = lr
        self._epoch_offset = epoch_offset
        self._steps_per_epoch = steps_per_epoch
        self._workers = workers

    def push(self, index: int) -> None:
        """Group `index` is finished. Returns at once; any thread may call it."""
        self._queue.put(index)

    def drain(self) -> float:
        """Wait until every pushed group is coded and handed to the transport; the seconds spent on coding.

        Raises errors of coding, NonFiniteGradientError after three steps in a row with such a gradient.
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
        """The master did not use `groups` of the gradient of `step`: their payloads return to the residuals, where there are.

        After `drain`, before the next `begin`. Groups that were not sent, and steps that were not taken, are passed over.
        """
        self.give_back_parts(step, dict.fromkeys(groups, np.float32(0)))

    def give_back_parts(self, step: int, factors: Mapping[int, np.float32]) -> None:
        """`give_back`, where the master used these groups of the gradient of `step` times these factors, from 0 to 1.

        1 - factor is float32, and so is its product with the decoded payload.
        """
        for index, factor in factors.items() if step == self._step else ():
            if (sent := self._sent.pop(index, None)) is not None:
                self.before_change(index)
                frame, payloads = sent
                coders = self._coders[index]
                parts = wire.split_group(frame[wire.HEADER_BYTES :], payloads)
                for coder, data in zip(coders, parts, strict=False):  # absent tensors and the weight come last
                    _put_back(coder, coder.codec(self._phase, step), Payload.from_bytes(data), float(np.float32(1) - factor))

    @property
    def relative_error(self) -> float | None:
        """||p - decoded|| / ||p|| over all that the step's codecs were given; None where it was not measured."""
        return None if self._lost is None else math.sqrt(self._lost[0] / self._lost[1]) if self._lost[1] else 0.0

    @property
    def nbytes(self) -> int:
        """The bytes of the frames of this step. After `drain`."""
        return self._nbytes

    def close(self) -> None:
        """End the thread."""
        self._queue.put(None)
        self._thread.join()

    def state(self) -> dict[str, torch.Tensor]:
        """The memories of all segments, for a checkpoint: views, named by memory and tensor (psnode.records.state_names)."""
        return self._memories.state([coder for coders in self._coders for coder in coders])

    def memory(self) -> list[list[torch.Tensor]]:
        """The arrays of `state` that a push or a returned gradient changes, by group."""
        arrays = ([array for coder in coders for array in (*coder.state.values(), coder.codebook)] for coders in self._coders)
        return [[torch.from_numpy(array) for array in found] for found in arrays]

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Inverse of `state`, by whatever plan it was written. CheckpointError if it is of another model or feedback rule."""
        self._memories.load([coder for coders in self._coders for coder in coders], tensors)

    def _run(self) -> None:
        while (index := self._queue.get()) is not None:
            start = time.perf_counter()
            try:
                if self._error is None and self._skipped is None:
                    with self._stream:
                        self._send(self._plan.groups[index])
            except Exception as error:  # handed to the thread that trains, which owns the decision
                self._error = error
            self._seconds += time.perf_counter() - start
            self._idle.release()

    def _send(self, group: Group) -> None:
        coders = self._coders[group.index]
        codecs = [coder.codec(self._phase, self._step) for coder in coders]
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
            fitted = any(codec.traits.refit > 1 for codec in codecs)  # a codebook that was fitted stays
            for coder, _ in pairs:
                segment = coder.segment
                if coder.on_device is not None:
                    coder.on_device.check(self._gradients.pieces(segment.start, segment.stop))
                elif fitted or not coder.feedback.sums:  # else coding finds a part that is not finite, and is undone
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
            self._link.send(MASTER, Kind.SKIP_STEP, str(self._skipped).encode(), step=self._step, version=self._version)
            return
        for part in more:
            frame.room[: len(part)] = np.frombuffer(part, np.uint8)
            frame.take(len(part))
        flags = (Flag.PARTIAL if mark else Flag.NONE) | (Flag.WEIGHED if weight else Flag.NONE)
        sealed = self._frames.send(
            group.index, frame, self._targets[group.index], Kind.GRADIENT, self._step, self._version, flags
        )
        self._sent[group.index] = sealed, len(coders) + len(more)
        self._nbytes += sealed.size

    def _check(self, segment: Segment) -> None:
        """Raise NonFinitePartError for the first coordinate of the segment's gradient that is not finite."""
        for place, part in self._gradients.parts(segment.start, segment.stop):
            if not all_finite(part):
                raise_nonfinite(part, place, NonFinitePartError)

    def _undo(self, coder: SegmentCoder, codec: Codec, payload: Payload) -> None:
        """Restore a segment's memory from before the gradient was added and `payload` taken from it."""
        if coder.feedback.memory is not None:
            parts = self._gradients.parts(coder.segment.start, coder.segment.stop)
            decoded = codec.decode(payload).reshape(-1)
            restore(coder.state[coder.feedback.memory], parts, coder.segment.size, decoded)

    def _code(self, group: Group, coder: SegmentCoder, codec: Codec, out: Bytes) -> Payload:
        segment = coder.segment
        rank = ALL if coder.feedback.merges(codec) else self._link.rank
        key = gradient_key(self._seed, rank, self._step, group.index, segment.index)
        context = coder.context(self._workers, self._rate, self._rate_before)
        if coder.on_device is not None:
            pieces = self._gradients.pieces(segment.start, segment.stop)
            payload = coder.on_device.push(pieces, codec, key, out, context)
        else:
            gradient, payload = coder.push(self._gradients, codec, key, out, context)
            coder.fit(gradient, payload, key, self._phase, self._step)
        if self._lost is not None:
            if coder.on_device is not None:
                gradient = self._gradients.flat(segment.start, segment.stop).reshape(segment.shape)
            error, energy = coder.feedback.lost(gradient, coder.state, codec.decode(payload))
            self._lost = self._lost[0] + error, self._lost[1] + energy
        return payload


def _put_back(coder: SegmentCoder, codec: Codec, payload: Payload, weight: float = 1.0) -> None:
    """Return the decoded `payload`, times `weight`, to the residual it was taken from, if there is one."""
    if coder.feedback.memory is not None:
        codec.decode_add(payload, coder.state[coder.feedback.memory], weight)
