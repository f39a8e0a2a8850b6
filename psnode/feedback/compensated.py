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

    The accumulated error is the gradient minus the sent values: the paper's h is the sum of beta^(t - 1 - s) (g_s - q_s) over
    the steps s before t, not the sum with p_s - q_s. With e = p - q this gives h = (beta - alpha) h + e. So alpha = beta = 1
    is error feedback. As in the paper, an unbiased codec is used unchanged: if its variance is at most omega ||p||^2, E||h||^2
    stays bounded for alpha^2 omega + (beta - alpha)^2 < 1.

    The sum weighted by the decay is conserved for every alpha: sum over t <= T of beta^(T - t) (g_t - q_t) = h_T. With beta = 1
    the sum of all sent values + h = the sum of g; with a smaller beta, old errors are forgotten.

    Wu, Huang, Huang, Zhang, "Error compensated quantized SGD and its applications to large-scale distributed optimization", ICML
    2018: the definition of h, its recursion, p and the bound above.
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
