"""Signum's feedback rule: a moving average of gradients is coded in place of the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.base import RandomSource
from psnode.codecs.kernels.jit import kernel
from psnode.errors import CodecSpecError
from psnode.feedback.feedback_rule import ALONE, Context, Feedback, MomentumRule, State


@dataclass(frozen=True, repr=False)
class MomentumAverage(Feedback):
    """Signum: m = beta m + (1 - beta) g is coded in place of the gradient g.

    Bernstein et al., "signSGD", ICML 2018, algorithm 2.
    """

    id: ClassVar[str] = "ema"

    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise CodecSpecError(f"ema: beta must be at least 0 and below 1, not {self.beta}")

    @property
    def gathering(self) -> MomentumRule:
        return MomentumRule(self.beta, 1 - self.beta)

    def init(self, size: int) -> State:
        return {"average": np.zeros(size, np.float32)}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        average = state["average"]
        _mix(average, np.ascontiguousarray(gradient).reshape(-1), np.float32(self.beta))
        return codec.encode(average.reshape(gradient.shape), rng, out=out)

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        return state["average"].reshape(gradient.shape)


@kernel
def _mix(average: Floats, g: Floats, beta: np.float32) -> None:
    rest = np.float32(1) - beta
    for i in range(average.size):
        average[i] = beta * average[i] + rest * g[i]
