"""Gradients given by a test instead of a model, for a sender."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


class Given:
    """A flat vector of gradients that a test may change. A segment is delivered in `pieces` parts of equal length."""

    def __init__(self, vector: np.ndarray, pieces: int = 1) -> None:
        self.vector = vector
        self._pieces = pieces

    def flat(self, start: int, stop: int) -> np.ndarray:
        return self.vector[start:stop]

    def parts(self, start: int, stop: int) -> list[tuple[int, np.ndarray]]:
        places = [(stop - start) * piece // self._pieces for piece in range(self._pieces + 1)]
        return [(a, self.vector[start + a : start + b]) for a, b in pairwise(places)]

    def absent(self, start: int, stop: int) -> list[int]:
        return []
