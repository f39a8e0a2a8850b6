"""What a sender remembers between steps.

A Feedback is a rule without memory of its own; the memory is a State, a dict of flat float32 arrays that the
caller owns, saves in checkpoints and passes in at every push, which updates it in place.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs import Codec, Payload, spec
from psnode.codecs.base import Bytes, RandomSource
from psnode.codecs.kernels.jit import kernel
from psnode.errors import CodecSpecError, ConfigurationError

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Context(NamedTuple):
    """What a rule may need to know of the job: the number of workers, and lr of the last step / lr of this one."""

    workers: int = 1
    lr_ratio: float = 1.0


ALONE = Context()


class Feedback(ABC):
    """The rule: which memories a segment has, and what is coded in the place of its gradient.

    `memory` names the array that holds what was coded minus what the receivers decoded, if the rule keeps one.
    """

    id: ClassVar[str]
    memory: ClassVar[str | None] = None
    momentum_of_its_own: ClassVar[bool] = False

    @abstractmethod
    def init(self, size: int) -> State:
        """The memories of a segment of `size` coordinates before the first step."""

    def form(self, codec: Codec) -> Codec:
        """The form of `codec` that may be used under this rule."""
        return codec if self.memory is None else codec.contractive()

    def dense(self) -> Feedback:
        """The rule for a segment that is not compressed, in a job whose other segments follow this one."""
        return self

    @abstractmethod
    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        """Code a segment's gradient (float32, the segment's shape) and update `state`.

        `codec` is what `form` returned. `out` is passed on to encode. The gradient is not modified.
        """

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        """What the last push gave to the codec; `gradient` and `state` as that push left them."""
        return gradient if self.memory is None else state[self.memory].reshape(gradient.shape) + decoded

    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        """||p - decoded||^2 and ||p||^2 for what the last push coded, p."""
        coded = self.coded(gradient, state, decoded)
        return _energy(coded - decoded), _energy(coded)

    def __repr__(self) -> str:
        return spec.show(self.id, self)


@dataclass(frozen=True, repr=False)
class NoFeedback(Feedback):
    """Every gradient is coded by itself: what unbiased codecs are made for."""

    id: ClassVar[str] = "none"

    def init(self, size: int) -> State:
        return {}

    def push(
        self,
        gradient: Floats,
        state: State,
        codec: Codec,
        rng: RandomSource,
        out: Bytes | None = None,
        context: Context = ALONE,
    ) -> Payload:
        return codec.encode(gradient, rng, out=out)


@dataclass(frozen=True, repr=False)
class ErrorFeedback(Feedback):
    """What coding lost is added to the next gradient: p = g + decay * e, send C(p), e = p - C(p).

    Converges for every contraction C (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, algorithm 2);
    an unbiased codec is therefore used in its contractive form. With decay=1 the sum of what was sent + e = the sum of g.
    rescale=true multiplies e by lr_{t-1}/lr_t: the residual is kept in units of weights when the learning rate
    changes (Zheng, Huang, Kwok, "Communication-efficient distributed blockwise momentum SGD with error-feedback",
    NeurIPS 2019, algorithm 1).
    """

    id: ClassVar[str] = "ef"
    memory: ClassVar[str | None] = "residual"

    decay: float = 1.0
    rescale: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.decay <= 1:
            raise CodecSpecError(f"ef: decay must be above 0 and at most 1, not {self.decay}")

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
        residual = state["residual"].reshape(gradient.shape)
        factor = np.float32(self.decay * (context.lr_ratio if self.rescale else 1.0))
        if factor != 1:
            np.multiply(residual, factor, out=residual)
        return codec.encode_sum(gradient, rng, residual, out=out)


@dataclass(frozen=True, repr=False)
class MomentumCorrection(Feedback):
    """DGC: momentum is accumulated before coding, and forgotten where it was sent (momentum factor masking).

    u = m u + g, v = v + u, send C(v), v = v - C(v), u = 0 on the support of what was sent. nesterov: u = m (u + g),
    v = v + u + g. clip > 0 first scales a segment's gradient to a norm of at most clip / sqrt(workers).
    The master's own momentum must then be 0. Lin et al., "Deep gradient compression", ICLR 2018, section 3, appendix B.
    """

    id: ClassVar[str] = "dgc"
    memory: ClassVar[str | None] = "velocity"
    momentum_of_its_own: ClassVar[bool] = True

    momentum: float = 0.9
    nesterov: bool = False
    clip: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise CodecSpecError(f"dgc: momentum must be at least 0 and below 1, not {self.momentum}")
        if not 0 <= self.clip < math.inf:
            raise CodecSpecError(f"dgc: clip must be 0 (none) or a finite norm above it, not {self.clip}")

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
        flat, momentum, velocity = np.ascontiguousarray(gradient).reshape(-1), state["momentum"], state["velocity"]
        scale = _clipping(flat, self.clip, context.workers)
        _correct(momentum, velocity, flat, np.float32(self.momentum), scale, self.nesterov)
        shaped = velocity.reshape(gradient.shape)
        payload = codec.encode(shaped, rng, error=shaped, out=out)
        momentum[codec.support(payload)] = 0
        return payload


@dataclass(frozen=True, repr=False)
class LocalMomentum(Feedback):
    """Momentum at the sender, and nothing held back: DGC's rule for the vectors that it sends whole.

    u = m u + g is coded; with nesterov u = m (u + g), and u + g is coded. Parameters as of `dgc`.
    """

    id: ClassVar[str] = "momentum"
    momentum_of_its_own: ClassVar[bool] = True

    momentum: float = 0.9
    nesterov: bool = False
    clip: float = 0.0

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
        flat, sent = np.ascontiguousarray(gradient).reshape(-1), state["sent"]
        sent[:] = 0
        _correct(
            state["momentum"], sent, flat, np.float32(self.momentum), _clipping(flat, self.clip, context.workers), self.nesterov
        )
        return codec.encode(sent.reshape(gradient.shape), rng, out=out)

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        return state["sent"].reshape(gradient.shape)


@dataclass(frozen=True, repr=False)
class MomentumAverage(Feedback):
    """Signum: m = beta m + (1 - beta) g is coded in the place of g (Bernstein et al., "signSGD", ICML 2018, algorithm 2)."""

    id: ClassVar[str] = "ema"
    momentum_of_its_own: ClassVar[bool] = True

    beta: float = 0.9

    def __post_init__(self) -> None:
        if not 0 <= self.beta < 1:
            raise CodecSpecError(f"ema: beta must be at least 0 and below 1, not {self.beta}")

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


RULES: dict[str, type[Feedback]] = {
    rule.id: rule for rule in (NoFeedback, ErrorFeedback, MomentumCorrection, LocalMomentum, MomentumAverage)
}


def get_feedback(text: str) -> Feedback:
    """The rule of a spec such as `ef` or `dgc:momentum=0.9,nesterov=true`. ConfigurationError names the valid ones."""
    wrapped, stages = spec.parse(text)
    if wrapped or len(stages) != 1:
        raise ConfigurationError(f"feedback {text!r} must be one rule: choose from {', '.join(RULES)}")
    if stages[0].id not in RULES:
        raise spec.unknown("feedback", stages[0].id, RULES)
    rule: Feedback = spec.construct(RULES[stages[0].id], stages[0])
    return rule


def _clipping(gradient: Floats, clip: float, workers: int) -> np.float32:
    """The factor that brings the norm of `gradient` to at most clip / sqrt(workers); clip=0: 1."""
    if not clip:
        return np.float32(1)
    norm, limit = math.sqrt(_energy(gradient)), clip / math.sqrt(workers)
    return np.float32(limit / norm if norm > limit else 1.0)


def _energy(values: Floats) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))


@kernel
def _correct(u: Floats, v: Floats, g: Floats, m: np.float32, scale: np.float32, nesterov: bool) -> None:
    for i in range(u.size):
        x = scale * g[i]
        if nesterov:
            u[i] = m * (u[i] + x)
            v[i] += u[i] + x
        else:
            u[i] = m * u[i] + x
            v[i] += u[i]


@kernel
def _mix(average: Floats, g: Floats, beta: np.float32) -> None:
    rest = np.float32(1) - beta
    for i in range(average.size):
        average[i] = beta * average[i] + rest * g[i]
