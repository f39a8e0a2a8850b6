"""Coding of one segment on a worker: codec, feedback rule, memories, and the codebook that is kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from psnode.codecs import Codec, Payload, get_codec
from psnode.codecs.rng import Key
from psnode.config.schemes import phases
from psnode.feedback import Context, Feedback, State
from psnode.plan.groups import Segment

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
_ROOM = 4096
RATE = "rate"  # a memory: what another one is in units of


class SegmentCoder:
    """One segment's codec, feedback rule and memory.

    `warmup`: the sparsifier's ratio in each of the first phases, before the one that the plan names. With refit=k a codec codes
    the first of every k steps as it is, and is then fitted to that for the k - 1 steps behind; not in the warm-up.
    `clipped`: the master may use a part of what is sent, so that a segment which travels as it is needs a memory as well.
    """

    def __init__(self, segment: Segment, feedback: Feedback, warmup: Sequence[float] = (), *, clipped: bool = False) -> None:
        codec = get_codec(segment.codec)
        self.segment = segment
        needs_memory = clipped and feedback.memory is not None
        self.feedback: Feedback = feedback.dense() if codec.lossless and not needs_memory else feedback
        self._phases: list[Codec] = [self.feedback.form(get_codec(spec)) for spec in phases(segment.codec, warmup)]
        self.state: State = self.feedback.init(segment.size)
        self.max_nbytes = max(phase.max_nbytes(segment.shape) for phase in self._phases)
        self._refit = self._phases[-1].traits.refit
        self._codebook = np.zeros(_ROOM if self._refit > 1 else 0, np.uint8)
        self._fitted: Codec | None = None
        self._rate = np.zeros(1)  # the learning rate of the last push, which a rescaled memory is in units of; 0: not known

    def context(self, workers: int, rate: float, before: float) -> Context:
        """Context of the push that follows, of a step with learning rate `rate`.

        `before`: that of the step before, for a memory which does not say what it is in units of.
        """
        last = float(self._rate[0]) or before
        if rate > 0:
            self._rate[0] = rate
        return Context(workers, last / rate if rate > 0 else 1.0)

    def codec(self, phase: int, step: int = 1) -> Codec:
        """The codec for `step`, counted from 1, in `phase` of the warm-up, or after it."""
        if self._fitted is not None and not self._due(step):
            return self._fitted
        return self._phases[min(phase, len(self._phases) - 1)]

    def fit(self, gradient: Floats, payload: Payload, key: Key, phase: int, step: int) -> None:
        """Keep the codebook for what `payload`, the last push of `gradient`, was made of; if `step` is one that has to."""
        if self._refit == 1 or not self._due(step) or phase < len(self._phases) - 1:
            return
        codec = self._phases[-1]
        self._fitted = codec.fit(self.feedback.coded(gradient, self.state, codec.decode(payload)), key)
        spec = repr(self._fitted).encode()
        self._codebook[:] = 0
        self._codebook[: len(spec)] = np.frombuffer(spec, np.uint8)

    def memories(self) -> dict[str, npt.NDArray[Any]]:
        """Memories for a checkpoint, as views. After writing to them call `restore`."""
        rate = {RATE: self._rate} if self.feedback.rescales else {}
        return {**self.state, **rate, **({"codebook": self._codebook} if self._refit > 1 else {})}

    def restore(self) -> None:
        """Use the codebook that was written to the memories."""
        spec = self._codebook.tobytes().rstrip(b"\0").decode()
        self._fitted = get_codec(spec) if spec else None

    def _due(self, step: int) -> bool:
        return (step - 1) % self._refit == 0
