"""Rules of senders: the memories of a segment between steps, and the values coded in place of its gradient."""

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
    """Facts of the job that a rule may need: the number of workers, and lr of the last push / lr of this one."""

    workers: int = 1
    lr_ratio: float = 1.0


ALONE = Context()


class Gathering(NamedTuple):
    """A momentum: v = momentum v + gain g; v, or with nesterov gain g + momentum v, replaces g."""

    momentum: float
    gain: float = 1.0
    nesterov: bool = False


class Feedback(ABC):
    """Rule of a sender: the memories of a segment, and the values coded in place of its gradient.

    `memory` names the array of the coded values minus the decoded ones, if the rule keeps one. `masks`: momentum is forgotten at
    sent coordinates, so the rule is for codecs that leave coordinates out. `only_adds`: a gradient is added to that array and not
    used again, so that `push_parts` needs no array of it. `scratch` names arrays that every push overwrites: they are not part of
    a checkpoint.
    """

    id: ClassVar[str]
    memory: ClassVar[str | None] = None
    masks: ClassVar[bool] = False
    only_adds: ClassVar[bool] = False
    scratch: ClassVar[frozenset[str]] = frozenset()

    @property
    def gathering(self) -> Gathering | None:
        """The momentum in which gradients are gathered before they are coded, if the rule has one: it is then the only one."""
        return None

    @property
    def rescales(self) -> bool:
        """True if the memory is kept in units of weights: a gradient then counts with the learning rate of its own version."""
        return False

    @property
    def sums(self) -> bool:
        """True if it `only_adds`, and to all of the memory: subtracting the gradient then undoes a push."""
        return False

    @abstractmethod
    def init(self, size: int) -> State:
        """Return the memories of a segment of `size` coordinates before the first step."""

    def form(self, codec: Codec) -> Codec:
        """Return the form of `codec` that may be used under this rule."""
        return codec if self.memory is None else codec.contractive()

    def merges(self, codec: Codec) -> bool:
        """Return True if the senders of a step share a key, so that their payloads are summed undecoded and decoded once.

        A memory holds the coded values minus the decoded ones of this payload: with one, merged payloads must decode to the sum.
        """
        return codec.linear and (self.memory is None or codec.traits.decodes_linearly)

    def dense(self) -> Feedback:
        """Return the rule for a segment that is not compressed, in a job whose other segments follow this one."""
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

        `codec` is the result of `form`. `out` is passed on to encode. The gradient is not modified.
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
        """`push` for the gradient of `shape` that consists of `parts`, flat, and of zeros."""
        gradient = np.zeros(math.prod(shape), np.float32)
        for place, part in parts:
            gradient[place : place + part.size] = part
        return self.push(gradient.reshape(shape), state, codec, rng, out, context)

    def coded(self, gradient: Floats, state: State, decoded: Floats) -> Floats:
        """Return the array that the last push gave to the codec; `gradient` and `state` as that push left them."""
        return gradient if self.memory is None else state[self.memory].reshape(gradient.shape) + decoded

    def lost(self, gradient: Floats, state: State, decoded: Floats) -> tuple[float, float]:
        """Return ||p - decoded||^2 and ||p||^2 of the values p that the last push coded."""
        coded = self.coded(gradient, state, decoded)
        return energy(coded - decoded), energy(coded)

    def __repr__(self) -> str:
        return str(Stage.of(self.id, self))


def energy(values: Floats) -> float:
    """Return the sum of the squares."""
    return float(np.sum(np.square(values, dtype=np.float64)))
