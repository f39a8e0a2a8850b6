"""Streaming reductions of decoded gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from psnode.codecs import Codec, Payload
from psnode.errors import ConfigurationError

Floats = npt.NDArray[np.float32]


class Aggregator(ABC):
    """Adds payloads to an accumulator one by one; holds nothing itself."""

    @abstractmethod
    def add(self, codec: Codec, payload: Payload, out: Floats) -> None:
        """Add one worker's payload of a segment to the segment's accumulator `out` (flat, zeros at first)."""

    @abstractmethod
    def finish(self, out: Floats, count: int) -> None:
        """Turn the accumulator of `count` workers into the gradient to apply, in place."""


class Mean(Aggregator):
    """The mean over the gradients really added."""

    def add(self, codec: Codec, payload: Payload, out: Floats) -> None:
        codec.decode_add(payload, out)

    def finish(self, out: Floats, count: int) -> None:
        if count > 1:
            out *= np.float32(1 / count)


_AGGREGATORS: dict[str, Callable[[], Aggregator]] = {"mean": Mean}


def get_aggregator(name: str) -> Aggregator:
    """The aggregator called `name`; ConfigurationError names the valid ones."""
    if name not in _AGGREGATORS:
        raise ConfigurationError(f"unknown aggregator {name!r}: choose from {', '.join(_AGGREGATORS)}")
    return _AGGREGATORS[name]()
