"""Aggregators: rules by which decoded gradients are added as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar

import numpy as np

from psnode.codecs import Codec, Payload
from psnode.codecs.arrays import Floats
from psnode.codecs.base import Measured, RandomSource
from psnode.codecs.sign import Sign
from psnode.config.effects import CLIPPED, MAJORITY
from psnode.errors import ConfigurationError


class Aggregator(ABC):
    """Rule, without state of its own, by which payloads are added to an accumulator one by one.

    `merges`: True if payloads of a linear codec may first be merged into one payload, which is then added. `clips`: True if
    payloads are added with weights that depend on all pushes of the round (psnode.exchange.shard.median_clipping).
    """

    merges: ClassVar[bool] = False
    clips: ClassVar[bool] = False

    @abstractmethod
    def add(self, codec: Codec, payload: Payload, out: Floats, weight: float = 1.0) -> None:
        """Add one worker's payload of a segment, times `weight`, to the segment's flat accumulator `out`.

        The accumulator begins with zeros.
        """

    def add_measured(self, codec: Codec, payload: Payload, measured: Measured, out: Floats, weight: float = 1.0) -> None:
        """Add a payload like `add`. `measured`: the result of an earlier check, which need not be repeated."""
        self.add(codec, payload, out, weight)

    @abstractmethod
    def finish(self, out: Floats, count: float, rng: RandomSource | None = None) -> float:
        """Turn the accumulator `out` of `count` gradients into a multiple of the gradient to apply.

        Returns the factor that turns this multiple into the gradient. Random decisions are drawn from `rng`.
        """


class Mean(Aggregator):
    """Mean of all gradients that were added."""

    merges: ClassVar[bool] = True

    def add(self, codec: Codec, payload: Payload, out: Floats, weight: float = 1.0) -> None:
        codec.decode_add(payload, out, weight)

    def add_measured(self, codec: Codec, payload: Payload, measured: Measured, out: Floats, weight: float = 1.0) -> None:
        measured.add(out, np.float32(weight))

    def finish(self, out: Floats, count: float, rng: RandomSource | None = None) -> float:
        return 1 / count


class ClippedMean(Mean):
    """Mean of the pushes of a round, each scaled down so that its norm is at most the median of their norms."""

    merges: ClassVar[bool] = False
    clips: ClassVar[bool] = True


class Majority(Aggregator):
    """Majority vote: the sign that most workers sent, 1 or -1. Ties and coordinates without votes are decided at random.

    A worker's vote is the sign of its values, so tensors that travel uncompressed also vote. A value of 0 is an abstention.
    The codec `sign` makes the random decisions, and draws them anew for every `rng`.

    Bernstein et al., "signSGD with Majority Vote is Communication Efficient and Fault Tolerant", ICLR 2019.
    """

    def add(self, codec: Codec, payload: Payload, out: Floats, weight: float = 1.0) -> None:
        """Add a worker's votes. Every vote counts the same, whatever the `weight`."""
        if codec.traits.votes:
            codec.decode_add(payload, out)
        else:
            votes = codec.decode(payload).reshape(-1)
            out += np.sign(votes, out=votes)

    def finish(self, out: Floats, count: float, rng: RandomSource | None = None) -> float:
        if rng is None:
            raise TypeError("a majority vote needs rng: ties must not fall alike in every step")
        sign = Sign()
        sign.decode(sign.encode(out, rng), out)
        return 1.0


_AGGREGATORS: dict[str, Callable[[], Aggregator]] = {"mean": Mean, MAJORITY: Majority, CLIPPED: ClippedMean}


def get_aggregator(name: str) -> Aggregator:
    """Return the aggregator called `name`. Raises ConfigurationError, which names the valid aggregators, for any other name."""
    if name not in _AGGREGATORS:
        raise ConfigurationError(f"unknown aggregator {name!r}: choose from {', '.join(_AGGREGATORS)}")
    return _AGGREGATORS[name]()
