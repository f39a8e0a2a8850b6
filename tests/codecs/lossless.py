"""A check of lossless stages against writes beyond their buffers, and the symbols used to test them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from psnode.codecs.arrays import Codes, readonly
from psnode.codecs.entropy.ans import Ans
from psnode.codecs.entropy.rice import Rice
from psnode.codecs.stages import codes_like

_GUARD = 64


@dataclass(frozen=True)
class Guarded:
    """A lossless stage whose output buffer ends in guard bytes, to show that it does not write beyond its declared maximum."""

    stage: Ans | Rice

    def coded(self, codes: np.ndarray, alphabet: int) -> np.ndarray:
        """Check the round trip of `codes`, and return the coded bytes."""
        given = codes.astype(np.uint8 if alphabet <= 256 else np.uint16)
        out = np.full(self.stage.max_nbytes(given.size, alphabet) + _GUARD, 0xAA, np.uint8)
        used = self.stage.compress(readonly(given), alphabet, out)
        assert used <= out.size - _GUARD
        assert (out[-_GUARD:] == 0xAA).all()
        data = out[:used].copy()
        np.testing.assert_array_equal(self.expand(data, given.size, alphabet), given)
        return data

    def expand(self, data: np.ndarray, count: int, alphabet: int) -> Codes:
        guarded = codes_like(count + 2 * _GUARD, alphabet)
        guarded[:] = 0xA5
        self.stage.expand(readonly(data), guarded[_GUARD : _GUARD + count], alphabet)
        assert (guarded[:_GUARD] == 0xA5).all()
        assert (guarded[_GUARD + count :] == 0xA5).all()
        return guarded[_GUARD : _GUARD + count].copy()


def drawn(probabilities: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(probabilities.size, count, p=probabilities / probabilities.sum())


def geometric(alphabet: int, ratio: float) -> np.ndarray:
    return ratio ** np.arange(alphabet)


@st.composite
def histograms(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    alphabet = draw(st.sampled_from([1, 2, 3, 17, 31, 131, 255, 256, 257, 1000, 65536]))
    count = draw(st.one_of(st.integers(1, 40), st.integers(41, 5000), st.integers(16_380, 40_000)))
    kind = draw(st.sampled_from(["one", "two", "uniform", "geometric", "skewed", "halves"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    if kind == "one":
        return np.full(count, rng.integers(alphabet)), alphabet
    if kind == "two":
        return rng.choice(rng.integers(0, alphabet, 2), count, p=[0.9, 0.1]), alphabet
    if kind == "uniform":
        return rng.integers(0, alphabet, count), alphabet
    values = np.minimum(rng.geometric(0.999 if kind == "skewed" else rng.uniform(0.02, 0.9), count) - 1, alphabet - 1)
    if kind == "halves":
        values[count // 2 :] = rng.integers(0, alphabet, count - count // 2)
    return rng.permutation(alphabet)[values] if alphabet <= 1000 else values, alphabet
