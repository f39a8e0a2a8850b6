"""A recorded stream: the gradients of a small network with one hidden layer during its training, in NumPy alone."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

INPUTS, HIDDEN, CLASSES = 40, 50, 10
SIZE = INPUTS * HIDDEN + HIDDEN * CLASSES


@cache
def gradients(steps: int = 200) -> tuple[Floats, ...]:
    """Return one flat float32 array per step. Hidden units that no example of the batch of 8 activates have exactly zero
    gradients.
    """
    rng = np.random.default_rng(44)
    centres = rng.standard_normal((CLASSES, INPUTS))
    first, second = rng.standard_normal((INPUTS, HIDDEN)) / 6, rng.standard_normal((HIDDEN, CLASSES)) / 7
    found = []
    for _ in range(steps):
        labels = rng.integers(CLASSES, size=8)
        x = np.maximum(centres[labels] + rng.standard_normal((8, INPUTS)), 0)
        hidden = np.maximum(x @ first, 0)
        scores = np.exp(hidden @ second - (hidden @ second).max(1, keepdims=True))
        error = (scores / scores.sum(1, keepdims=True) - np.eye(CLASSES)[labels]) / 8
        one, two = x.T @ (error @ second.T * (hidden > 0)), hidden.T @ error
        first, second = first - 0.1 * one, second - 0.1 * two
        found.append(np.concatenate([one.reshape(-1), two.reshape(-1)]).astype(np.float32))
    return tuple(found)
