"""Coding of one segment on a worker: codec, feedback rule, memories, and the codebook that is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.arrays import Bytes, Floats, Parts
from psnode.codecs.rng import Key
from psnode.feedback import Context, Feedback, State
from psnode.plan.coding import SegmentCoding

if TYPE_CHECKING:
    import torch

    from psnode.codecs.device.protocols import DeviceCodec
    from psnode.exchange.device.segment import DeviceSegment

CODEBOOK_BYTES = 4096  # padded with zeros


class Laid(Protocol):
    """A gradient laid out by the plan, see psnode.exchange.gradients."""

    def parts(self, start: int, stop: int) -> Parts:
        """Coordinates [start, stop) in pieces, each with its offset from `start`; the others are zeros."""

    def flat(self, start: int, stop: int) -> Floats:
        """The same as one array."""


class SegmentCoder:
    """One segment's codec, feedback rule and memory.

    With refit=k a codec codes the first of every k steps as it is, and is then fitted to it for the next k - 1 steps; not in the
    warm-up. `memory`: the vector, laid out by the plan, of which the memory of a name is a part; None: an array of its own.
    """

    def __init__(self, coding: SegmentCoding, *, memory: Callable[[str], Floats] | None = None) -> None:
        self.segment = coding.segment
        self.feedback: Feedback = coding.feedback
        self._coding, self._memory = coding, memory
        self._state: State = self._begin()
        self.on_device: DeviceSegment | None = None  # where it is coded on a device
        self.max_nbytes = coding.limit
        self._refit = coding.up.traits.refit
        self.codebook = np.zeros(CODEBOOK_BYTES if self._refit > 1 else 0, np.uint8)  # after writing to it call `restore`
        self._fitted: Codec | None = None
        self.rate = 0.0  # the learning rate of the last push, which a rescaled memory is in units of; 0: not known

    @property
    def state(self) -> State:
        """The memories on the host, for callers that read or change them; the newest values, even if a device holds them."""
        if self.on_device is not None:
            self.on_device.settle()
        return self._state

    def _begin(self) -> State:
        """Memories before the first step."""
        segment = self.segment
        if self._memory is None:
            return self.feedback.init(segment.size)
        return {name: self._memory(name)[segment.start : segment.stop] for name in self.feedback.init(0)}

    @property
    def forgone(self) -> str | None:
        """The memory in which its rule keeps the loss of coding, where this segment has none, since it travels as it is."""
        return self._coding.rule.memory if self.feedback.memory is None else None

    def remember(self) -> None:
        """Have that memory all the same: something is owed from when the segment's tensors were compressed."""
        self.feedback = self._coding.rule
        self._state = self._begin()

    def context(self, workers: int, rate: float, before: float) -> Context:
        """Context of the push that follows, of a step with learning rate `rate`.

        `before`: that of the step before, for a memory which does not tell its unit.
        """
        last = self.rate or before
        if rate > 0:
            self.rate = rate
        return Context(workers, last / rate if rate > 0 else 1.0)

    def use(self, codecs: Mapping[str, DeviceCodec], device: torch.device) -> None:
        """Code on `device` from now on, by the forms there of `codecs_by_spec`."""
        from psnode.exchange.device.segment import DeviceSegment  # torch with it, which compiling kernels has no use for

        self.on_device = DeviceSegment(codecs, device, self.feedback, self.segment.shape, self._state)

    @property
    def codecs_by_spec(self) -> dict[str, Codec] | None:
        """The codecs of all phases, if none is ever fitted, and a device could follow the rule."""
        from psnode.exchange.device.rules import rule_of

        could = self._refit == 1 and rule_of(self.feedback) is not None
        return {repr(codec): codec for codec in self._coding.ups} if could else None

    def codec(self, phase: int, step: int = 1) -> Codec:
        """The codec for `step`, counted from 1, in `phase` of the warm-up, or after it."""
        if self._fitted is not None and not self._due(step):
            return self._fitted
        return self._coding.in_phase(phase)

    def push(self, gradients: Laid, codec: Codec, key: Key, out: Bytes, context: Context) -> tuple[Floats, Payload]:
        """Code the segment's part of `gradients` with `codec`; that part, or an array of its shape if the rule only adds it."""
        segment, feedback = self.segment, self.feedback
        if feedback.only_adds and feedback.memory is not None:
            parts = gradients.parts(segment.start, segment.stop)
            like = self.state[feedback.memory].reshape(segment.shape)
            return like, feedback.push_parts(parts, segment.shape, self.state, codec, key, out, context)
        gradient = gradients.flat(segment.start, segment.stop).reshape(segment.shape)
        return gradient, feedback.push(gradient, self.state, codec, key, out, context)

    def fit(self, gradient: Floats, payload: Payload, key: Key, phase: int, step: int) -> None:
        """Fit the codebook to the values coded in `payload`, the last push of `gradient`, if it is due at `step`."""
        if self._refit == 1 or not self._due(step) or phase < len(self._coding.ups) - 1:
            return
        codec = self._coding.up
        self._fitted = codec.fit(self.feedback.coded(gradient, self.state, codec.decode(payload)), key)
        spec = repr(self._fitted).encode()
        self.codebook[:] = 0
        self.codebook[: len(spec)] = np.frombuffer(spec, np.uint8)

    def restore(self) -> None:
        """Use the codebook that was written to `codebook`."""
        spec = self.codebook.tobytes().rstrip(b"\0").decode()
        self._fitted = get_codec(spec) if spec else None

    def _due(self, step: int) -> bool:
        return (step - 1) % self._refit == 0
