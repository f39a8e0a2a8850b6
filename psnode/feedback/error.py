"""Error feedback: the coding error is added to the next gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Parts
from psnode.codecs.base import RandomSource
from psnode.codecs.sinks import Subtracted
from psnode.codecs.sources import Accumulated
from psnode.errors import CodecSpecError
from psnode.feedback.feedback_rule import ALONE, Context, Feedback, State
from psnode.feedback.none import NoFeedback


@dataclass(frozen=True, repr=False)
class ErrorFeedback(Feedback):
    """Error feedback, which adds the coding error to the next gradient: p = g + decay * e, send C(p), e = p - C(p).

    Here g is the gradient, C encodes and decodes, and e is the residual. Error feedback converges for every contraction C
    (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, algorithm 2). Therefore an unbiased codec is used in its
    contractive form. With decay=1, the sum of all sent values plus e is the sum of all gradients.

    With rescale=true, e is multiplied by lr_s / lr_t before it is added, where s is the step of the last push and t the
    present step. So the residual keeps its size in units of weights when the learning rate changes (Zheng, Huang, Kwok,
    "Communication-efficient distributed blockwise momentum SGD with error-feedback", NeurIPS 2019, algorithm 1). Then the sum
    of lr * sent values, plus lr * e, is the sum of lr * g, where each term has the lr of its own step.
    """

    id: ClassVar[str] = "ef"
    memory: ClassVar[str | None] = "residual"
    only_adds: ClassVar[bool] = True

    decay: float = 1.0
    rescale: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise CodecSpecError(f"ef: decay must be above 0 and at most 1, not {self.decay}")

    @property
    def rescales(self) -> bool:
        return self.rescale

    @property
    def sums(self) -> bool:
        return self.decay == 1

    def dense(self) -> Feedback:
        return NoFeedback()

    def init(self, size: int) -> State:
        return {"residual": np.zeros(size, np.float32)}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        parts = [(0, np.ascontiguousarray(gradient).reshape(-1))]
        return self.push_parts(parts, gradient.shape, state, codec, rng, out, context)

    def push_parts(
        self,
        parts: Parts,
        shape: tuple[int, ...],
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        residual = self._carried(state, context).reshape(shape)
        return codec.encode(Accumulated(parts, residual), rng, sink=Subtracted(residual), out=out)

    def _carried(self, state: State, context: Context) -> Floats:
        """Multiply the residual e in place by `factor(context)`, and return it."""
        residual, factor = state["residual"], self.factor(context)
        if factor != 1:
            np.multiply(residual, factor, out=residual)
        return residual

    def factor(self, context: Context) -> np.float32:
        """Return the factor by which the residual is multiplied before the next gradient is added to it."""
        return np.float32(self.decay * (context.lr_ratio if self.rescale else 1.0))
