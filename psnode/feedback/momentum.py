"""Momentum at the sender: DGC's correction for coded segments, plain momentum for uncompressed ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats
from psnode.codecs.base import RandomSource
from psnode.codecs.kernels.dots import square_sum
from psnode.codecs.kernels.jit import kernel
from psnode.errors import CodecSpecError
from psnode.feedback.feedback_rule import ALONE, Context, Feedback, MomentumRule, State


@dataclass(frozen=True, repr=False)
class _SenderMomentum(Feedback):
    momentum: float = 0.9
    nesterov: bool = False
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise CodecSpecError(f"{self.id}: momentum must be at least 0 and below 1, not {self.momentum}")
        if not 0 <= self.clip < math.inf:
            raise CodecSpecError(f"{self.id}: clip must be 0 (none) or a finite norm above it, not {self.clip}")

    @property
    def gathering(self) -> MomentumRule:
        return MomentumRule(self.momentum, nesterov=self.nesterov)

    def _accumulate(self, gradient: Floats, u: Floats, v: Floats, workers: int) -> None:
        """Update the momentum u and the sum v with the gradient g, which is first clipped: u = m u + g, then v += u.

        m is the momentum factor. With nesterov, u = m (u + g), then v += u + g.
        """
        flat, scale = np.ascontiguousarray(gradient).reshape(-1), np.float32(1)
        if self.clip:
            norm, limit = math.sqrt(square_sum(flat)), self.clip / math.sqrt(workers)
            scale = np.float32(limit / norm if norm > limit else 1.0)
        _accumulate(u, v, flat, np.float32(self.momentum), scale, self.nesterov)


@dataclass(frozen=True, repr=False)
class MomentumCorrection(_SenderMomentum):
    """DGC: momentum is accumulated before coding, and set to 0 at sent coordinates (momentum factor masking).

    For the gradient g and the momentum factor m: u = m u + g, v = v + u, send C(v), v = v - C(v), u = 0 where C(v) has values.
    With nesterov u = m (u + g), v = v + u + g. C encodes and decodes; u and v are the rule's memories.

    After a lossless codec u is not set to 0, because all coordinates are sent together. With clip > 0 a segment's gradient is
    first scaled to a norm of at most clip / sqrt(workers). Lin et al., "Deep gradient compression", ICLR 2018, section 3,
    appendix B.
    """

    id: ClassVar[str] = "dgc"
    memory: ClassVar[str | None] = "velocity"
    masks: ClassVar[bool] = True

    def dense(self) -> Feedback:
        return LocalMomentum(self.momentum, self.nesterov, self.clip)

    def init(self, size: int) -> State:
        return {"momentum": np.zeros(size, np.float32), "velocity": np.zeros(size, np.float32)}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        momentum, velocity = state["momentum"], state["velocity"]
        self._accumulate(gradient, momentum, velocity, context.workers)
        shaped = velocity.reshape(gradient.shape)
        payload = codec.encode(shaped, rng, error=shaped, out=out)
        if not codec.lossless:
            momentum[codec.support(payload)] = 0
        return payload


@dataclass(frozen=True, repr=False)
class LocalMomentum(_SenderMomentum):
    """Momentum at the sender, without a residual: DGC's rule for vectors that are sent uncompressed.

    For the gradient g and the momentum factor m, the rule codes u = m u + g. With nesterov, u = m (u + g), and the rule codes
    u + g. The parameters are those of `dgc`.
    """

    id: ClassVar[str] = "momentum"
    scratch: ClassVar[frozenset[str]] = frozenset({"sent"})

    def init(self, size: int) -> State:
        return {"momentum": np.zeros(size, np.float32), "sent": np.zeros(size, np.float32)}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        sent = state["sent"]
        sent[:] = 0
        self._accumulate(gradient, state["momentum"], sent, context.workers)
        return codec.encode(sent.reshape(gradient.shape), rng, out=out)

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        return state["sent"].reshape(gradient.shape)


@kernel
def _accumulate(u: Floats, v: Floats, g: Floats, m: np.float32, scale: np.float32, nesterov: bool) -> None:
    for i in range(u.size):
        x = scale * g[i]
        if nesterov:
            u[i] = m * (u[i] + x)
            v[i] += u[i] + x
        else:
            u[i] = m * u[i] + x
            v[i] += u[i]
