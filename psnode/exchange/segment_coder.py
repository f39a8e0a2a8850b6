"""Coding of one segment on a worker, with its codec, feedback rule, memories and fitted codebook."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Parts
from psnode.codecs.registry import known_codec
from psnode.codecs.rng import Key
from psnode.feedback import Context, Feedback, State
from psnode.plans.coding import SegmentCoding

if TYPE_CHECKING:
    import torch

    from psnode.codecs.device.protocols import DeviceCodec
    from psnode.exchange.device.segment import DeviceSegment

CODEBOOK_BYTES = 4096  # size of a codebook, padded with zeros


class Laid(Protocol):
    """Gradient laid out as one vector in the order of the plan, see psnode.exchange.gradients."""

    def parts(self, start: int, stop: int) -> Parts:
        """Return the coordinates [start, stop) as pieces, each with its offset from `start`.

        Coordinates in no piece are zeros.
        """

    def flat(self, start: int, stop: int) -> Floats:
        """Return the coordinates [start, stop) as one array."""


class SegmentCoder:
    """Coder of one segment, with its codec, feedback rule and memories.

    With refit=k, the codec codes the first of every k rounds in its original form. Then it is fitted to the coded values, and
    codes the next k - 1 rounds in the fitted form. During the warm-up it is not fitted. `memory`: a function that takes the
    name of a memory and returns a vector in plan order, of which the segment uses its slice. If it is None, the segment has
    arrays of its own.
    """

    def __init__(self, coding: SegmentCoding, *, memory: Callable[[str], Floats] | None = None) -> None:
        self.segment = coding.segment
        self.feedback: Feedback = coding.feedback
        self._coding, self._memory = coding, memory
        self._state: State = self._begin()
        self.on_device: DeviceSegment | None = None  # set if the segment is coded on a device
        self.max_nbytes = coding.limit
        self._refit = coding.up.traits.refit
        self.codebook = np.zeros(CODEBOOK_BYTES if self._refit > 1 else 0, np.uint8)  # call `restore` after writing to this array
        self._fitted: Codec | None = None
        self.rate = 0.0  # learning rate of the last push, the unit of a rescaled residual; 0: unknown

    @property
    def state(self) -> State:
        """The newest memories, on the host, for callers that read or change them.

        If a device holds newer values, they are copied to the host first.
        """
        if self.on_device is not None:
            self.on_device.settle()
        return self._state

    def _begin(self) -> State:
        """Return the memories before the first step."""
        segment = self.segment
        if self._memory is None:
            return self.feedback.init(segment.size)
        return {name: self._memory(name)[segment.start : segment.stop] for name in self.feedback.init(0)}

    @property
    def forgone(self) -> str | None:
        """Name of the memory in which the run's rule keeps the coding error, if this segment has no such memory; otherwise None.

        A segment that travels uncompressed usually has no such memory.
        """
        return self._coding.rule.memory if self.feedback.memory is None else None

    def remember(self) -> None:
        """Give the segment the memory `forgone` after all. Its tensors were compressed before, and left a coding error."""
        self.feedback = self._coding.rule
        self._state = self._begin()

    def context(self, workers: int, rate: float, before: float) -> Context:
        """Return the context of the next push, in a step with learning rate `rate`.

        `before`: learning rate of the previous step. It is used if no earlier push has recorded its learning rate.
        """
        last = self.rate or before
        if rate > 0:
            self.rate = rate
        return Context(workers, last / rate if rate > 0 else 1.0)

    def use(self, codecs: Mapping[str, DeviceCodec], device: torch.device) -> None:
        """From now on, code on `device`. `codecs`: the device's forms of the codecs in `codecs_by_spec`."""
        from psnode.exchange.device.segment import DeviceSegment  # it imports torch, which `compilation` does not need

        self.on_device = DeviceSegment(codecs, device, self.feedback, self.segment.shape, self._state)

    @property
    def codecs_by_spec(self) -> dict[str, Codec] | None:
        """The codecs of all phases, by spec; None if a device cannot code the segment.

        This is so if the codec is fitted to values during the run, or if a device cannot follow the feedback rule.
        """
        from psnode.exchange.device.rules import rule_of

        could = self._refit == 1 and rule_of(self.feedback) is not None
        return {repr(codec): codec for codec in self._coding.ups} if could else None

    def codec(self, phase: int, number: int = 1) -> Codec:
        """Return the codec for round `number`, counted from 1, in `phase` of the warm-up."""
        if self._fitted is not None and not self._due(number):
            return self._fitted
        return self._coding.in_phase(phase)

    def push(self, gradients: Laid, codec: Codec, key: Key, out: Bytes, context: Context) -> tuple[Floats, Payload]:
        """Code the segment's part of `gradients` with `codec`. Return this part of the gradient, and the payload.

        If the rule only adds the gradient to a memory, the first result is not the gradient, but an array of the segment's
        shape with other values.
        """
        segment, feedback = self.segment, self.feedback
        if feedback.only_adds and feedback.memory is not None:
            parts = gradients.parts(segment.start, segment.stop)
            like = self.state[feedback.memory].reshape(segment.shape)
            return like, feedback.push_parts(parts, segment.shape, self.state, codec, key, out, context)
        gradient = gradients.flat(segment.start, segment.stop).reshape(segment.shape)
        return gradient, feedback.push(gradient, self.state, codec, key, out, context)

    def fit(self, gradient: Floats, payload: Payload, key: Key, phase: int, number: int) -> None:
        """If a fit is due in round `number`, fit the codec to the values that were coded as `payload`, and keep the codebook.

        `gradient` and `payload` are the results of the last push. During the warm-up the codec is not fitted.
        """
        if self._refit == 1 or not self._due(number) or phase < len(self._coding.ups) - 1:
            return
        codec = self._coding.up
        self._fitted = codec.fit(self.feedback.coded(gradient, self.state, codec.decode(payload)), key)
        spec = repr(self._fitted).encode()
        self.codebook[:] = 0
        self.codebook[: len(spec)] = np.frombuffer(spec, np.uint8)

    def restore(self) -> None:
        """Use the codebook that the caller has written to the array `codebook`."""
        spec = self.codebook.tobytes().rstrip(b"\0").decode()
        self._fitted = known_codec(spec) if spec else None

    def _due(self, number: int) -> bool:
        return (number - 1) % self._refit == 0
