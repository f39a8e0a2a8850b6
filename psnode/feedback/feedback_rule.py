"""Feedback rules of senders: the memories of a segment between steps, and the values coded in place of its gradient."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Bytes, Floats, Parts
from psnode.codecs.base import RandomSource
from psnode.codecs.spec import Stage

State = dict[str, Floats]


class Context(NamedTuple):
    """Facts of the job that a rule may need.

    `workers`: number of workers; `lr_ratio`: learning rate of the last push divided by the learning rate of this push.
    """

    workers: int = 1
    lr_ratio: float = 1.0


ALONE = Context()


class MomentumRule(NamedTuple):
    """Momentum v = momentum v + gain g, which gathers the gradients g.

    The values used in place of g are v or, with nesterov, gain g + momentum v.
    """

    momentum: float
    gain: float = 1.0
    nesterov: bool = False


class Feedback(ABC):
    """Rule of a sender: the memories of a segment, and the values coded in place of its gradient.

    `memory`: name of the residual, the array of the coded values minus the decoded values; None: the rule keeps no residual.
    `masks`: True if momentum is set to 0 at sent coordinates; such a rule is for codecs that leave coordinates out.
    `only_adds`: True if a gradient is only added to the residual, so that `push_parts` needs no array for the gradient.
    `scratch`: names of arrays that every push overwrites, and that are not saved in a checkpoint.
    """

    id: ClassVar[str]
    memory: ClassVar[str | None] = None
    masks: ClassVar[bool] = False
    only_adds: ClassVar[bool] = False
    scratch: ClassVar[frozenset[str]] = frozenset()

    @property
    def gathering(self) -> MomentumRule | None:
        """The momentum with which the rule gathers gradients before coding, or None.

        If it is not None, the job uses no other momentum.
        """
        return None

    @property
    def rescales(self) -> bool:
        """True if the residual is kept in units of weights. Each gradient then counts with the learning rate of its version."""
        return False

    @property
    def sums(self) -> bool:
        """True if the rule `only_adds` and forgets no part of the residual. Then subtracting the gradient undoes a push."""
        return False

    @abstractmethod
    def init(self, size: int) -> State:
        """Return the memories of a segment of `size` coordinates before the first step."""

    def form(self, codec: Codec) -> Codec:
        """Return the form of `codec` that may be used under this rule."""
        return codec if self.memory is None else codec.contractive()

    def merges(self, codec: Codec) -> bool:
        """Return True if payloads of several senders may be summed undecoded and then decoded once.

        In this case all senders of a step use the same key. A residual holds the coded values minus the decoded values of the
        sender's own payload. So under a rule with a residual, the merged payload must decode to the sum of the senders'
        decoded values.
        """
        return codec.linear and (self.memory is None or codec.traits.decodes_linearly)

    def dense(self) -> Feedback:
        """Return the rule for a segment that is not compressed, in a job whose other segments follow this rule."""
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
        """Code a segment's gradient (float32, of the segment's shape) and update `state`. Return the payload.

        `codec`: the result of `form`. `out`: the buffer that is passed on to `encode`. The gradient is not modified.
        """

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
        """Code a gradient of `shape` like `push`. The gradient consists of the flat `parts` and is zero elsewhere.

        Each part is given with its offset.
        """
        gradient = np.zeros(math.prod(shape), np.float32)
        for place, part in parts:
            gradient[place : place + part.size] = part
        return self.push(gradient.reshape(shape), state, codec, rng, out, context)

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        """Return the array that the last push gave to the codec. `gradient` and `state` must not have changed since that push.

        `decoded`: the decoded payload of the push.
        """
        return gradient if self.memory is None else state[self.memory].reshape(gradient.shape) + decoded

    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        """Return ||p - decoded||^2 and ||p||^2, where p is the array that the last push gave to the codec."""
        coded = self.coded(gradient, state, decoded)
        return energy(coded - decoded), energy(coded)

    def __repr__(self) -> str:
        return str(Stage.of(self.id, self))


def energy(values: Floats) -> float:
    """Return the sum of the squares of `values`, accumulated in float64."""
    return float(np.sum(np.square(values, dtype=np.float64)))
