"""Error-compensated quantisation: a share of an accumulated, decaying error is added to the gradient before quantisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.base import RandomSource
from psnode.codecs.kernels.jit import kernel
from psnode.errors import CodecSpecError
from psnode.feedback.feedback_rule import ALONE, Context, Feedback, State
from psnode.feedback.none import NoFeedback


@dataclass(frozen=True, repr=False)
class CompensatedQuantisation(Feedback):
    """ECQ-SGD: p = g + alpha h, send q = Q(p), h = beta h + (g - q).

    Here g is the gradient, Q the codec, and h the accumulated error, which begins with 0. Before step t, the paper's h is the
    sum of beta^(t - 1 - s) (g_s - q_s) over all earlier steps s. It accumulates g - q, not the coding error e = p - q of error
    feedback. In terms of e, the recursion is h = (beta - alpha) h + e, so alpha = beta = 1 is error feedback.

    As in the paper, an unbiased codec is used unchanged. If its variance is at most omega ||p||^2, E||h||^2 stays bounded for
    alpha^2 omega + (beta - alpha)^2 < 1.

    For every alpha, the sum of beta^(T - t) (g_t - q_t) over all steps t <= T is h after step T. With beta = 1, the sum of all
    sent values plus h is therefore the sum of all gradients. With a smaller beta, old errors are forgotten.

    Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed optimization",
    ICML 2018: the definition of h, its recursion, p and the bound above.
    """

    id: ClassVar[str] = "ecq"
    memory: ClassVar[str | None] = "error"
    scratch: ClassVar[frozenset[str]] = frozenset({"compensated"})

    alpha: float = 0.2
    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 < self.alpha <= 1:
            raise CodecSpecError(f"ecq: alpha must be above 0 and at most 1, not {self.alpha}")
        if not 0 <= self.beta <= 1:
            raise CodecSpecError(f"ecq: beta must be at least 0 and at most 1, not {self.beta}")

    def form(self, codec: Codec) -> Codec:
        return codec

    def merges(self, codec: Codec) -> bool:
        return codec.linear and codec.traits.decodes_linearly

    def dense(self) -> Feedback:
        return NoFeedback()

    def init(self, size: int) -> State:
        return {"error": np.zeros(size, np.float32), "compensated": np.zeros(size, np.float32)}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        error, compensated = state["error"], state["compensated"]
        flat = np.ascontiguousarray(gradient).reshape(-1)
        _compensate(flat, error, np.float32(self.alpha), compensated)
        payload = codec.encode(compensated.reshape(gradient.shape), rng, out=out)
        _accumulate(flat, np.float32(self.beta), error)
        codec.decode_add(payload, error, -1.0)
        return payload

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        return state["compensated"].reshape(gradient.shape)


@kernel
def _compensate(g: Floats, error: Floats, alpha: np.float32, compensated: Floats) -> None:
    for i in range(g.size):
        compensated[i] = g[i] + alpha * error[i]


@kernel
def _accumulate(g: Floats, beta: np.float32, error: Floats) -> None:
    for i in range(g.size):
        error[i] = beta * error[i] + g[i]
