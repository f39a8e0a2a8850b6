"""Bits of a payload and squared error of its decoded values, with their theoretical limits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from psnode.bench.yardsticks.rate_distortion import RateDistortion, least_bits, shrunk
from psnode.codecs import Codec
from psnode.codecs.arrays import Floats
from psnode.codecs.base import RandomSource


def quality(codec: Codec, parts: list[Floats], key: RandomSource, theory: RateDistortion) -> dict[str, Any]:
    """Encode each of `parts` separately, and return figures of their payloads.

    `bits`: bits per coordinate. `error`: the squared error relative to the energy. `shrunk`: the error after scaling by the
    best constant factor, which makes unbiased codecs comparable. `over_bound`: bits above the fewest with which a codec can
    have this error on every input. `over_source`: bits above the rate-distortion function of the source, `theory`.
    """
    nbytes, missed, energy = 0, 0.0, 0.0
    for part in parts:
        payload = codec.encode(part, key)
        nbytes += payload.nbytes
        missed += _squares(part - codec.decode(payload))
        energy += _squares(part)
    bits = 8 * nbytes / sum(part.size for part in parts)
    error = missed / energy if energy else 0.0
    least, own = (least_bits(error, codec.unbiased), theory.bits_at(shrunk(error, codec.unbiased))) if error else (None, None)
    return {
        "bits": bits,
        "error": error,
        "shrunk": shrunk(error, codec.unbiased),
        "over_bound": None if least is None else bits - least,
        "over_source": None if own is None else bits - own,
    }


def _squares(x: Floats) -> float:
    return sum(float(np.dot(part, part)) for part in _pieces(x.reshape(-1)))


def _pieces(x: Floats) -> Iterator[np.ndarray]:
    for start in range(0, x.size, 1 << 20):
        yield x[start : start + (1 << 20)].astype(np.float64)
