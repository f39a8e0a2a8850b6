"""What a sender remembers between steps.

A Feedback is a rule without memory of its own; the memory is a State, a dict of flat float32 arrays that the
caller owns, saves in checkpoints and passes in at every push, which updates it in place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from psnode.codecs import Codec, Payload
from psnode.codecs.base import Bytes, RandomSource
from psnode.errors import ConfigurationError

Floats = npt.NDArray[np.float32]
State = dict[str, Floats]


class Feedback(ABC):
    """The rule: which memories a segment has, and what is coded in the place of its gradient."""

    id: ClassVar[str]

    @abstractmethod
    def init(self, size: int) -> State:
        """The memories of a segment of `size` coordinates before the first step."""

    def form(self, codec: Codec) -> Codec:
        """The form of `codec` that may be used under this rule."""
        return codec

    @abstractmethod
    def push(self, gradient: Floats, state: State, codec: Codec, rng: RandomSource, out: Bytes | None = None) -> Payload:
        """Code a segment's gradient (float32, the segment's shape) and update `state`.

        `codec` is what `form` returned. `out` is passed on to encode. The gradient is not modified.
        """

    @abstractmethod
    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        """||p - decoded||^2 and ||p||^2 for what the last push coded, p; `gradient` and `state` as that push left them."""

    def __repr__(self) -> str:
        return self.id


@dataclass(frozen=True, repr=False)
class NoFeedback(Feedback):
    """Every gradient is coded by itself: what unbiased codecs are made for."""

    id: ClassVar[str] = "none"

    def init(self, size: int) -> State:
        return {}

    def push(self, gradient: Floats, state: State, codec: Codec, rng: RandomSource, out: Bytes | None = None) -> Payload:
        return codec.encode(gradient, rng, out=out)

    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        return _energy(gradient - decoded), _energy(gradient)


@dataclass(frozen=True, repr=False)
class ErrorFeedback(Feedback):
    """What coding lost is added to the next gradient: p = g + e, send C(p), e = p - C(p).

    Converges for every contraction C (Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019, algorithm 2);
    an unbiased codec is therefore used in its contractive form. Sum of what was sent + e = sum of g.
    """

    id: ClassVar[str] = "ef"

    def init(self, size: int) -> State:
        return {"residual": np.zeros(size, np.float32)}

    def form(self, codec: Codec) -> Codec:
        return codec.contractive()

    def push(self, gradient: Floats, state: State, codec: Codec, rng: RandomSource, out: Bytes | None = None) -> Payload:
        residual = state["residual"].reshape(gradient.shape)
        np.add(residual, gradient, out=residual)
        return codec.encode(residual, rng, error=residual, out=out)

    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        residual = state["residual"].reshape(gradient.shape)
        return _energy(residual), _energy(residual + decoded)


def _energy(values: Floats) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))


_RULES: dict[str, Callable[[], Feedback]] = {"none": NoFeedback, "ef": ErrorFeedback}


def get_feedback(spec: str) -> Feedback:
    """The rule of a spec such as `ef`. ConfigurationError names the valid ones."""
    if spec not in _RULES:
        raise ConfigurationError(f"unknown feedback {spec!r}: choose from {', '.join(_RULES)}")
    return _RULES[spec]()
