"""How long a round may take before those who hold it up are put aside."""

from __future__ import annotations

from collections import deque
from statistics import median

FLOOR = 5.0  # seconds: a busy host or a collection of garbage takes less
_RECENT = 50
_ENOUGH = 3


class Patience:
    """max(5 s, median + 6 MAD) of recent rounds, or `fixed` seconds if that is above 0; `pause` for declared pauses.

    Six median absolute deviations are four standard deviations of a normal distribution. Declared pauses are rounds that
    are known to take longer: the first ones, and those after a checkpoint, a comparison of weights or the end of an epoch.
    """

    def __init__(self, fixed: float, pause: float) -> None:
        self._fixed = fixed
        self._pause = pause
        self._seconds: deque[float] = deque(maxlen=_RECENT)

    def add(self, seconds: float) -> None:
        """A round that was no declared pause took `seconds`."""
        self._seconds.append(seconds)

    def of_round(self, *, pause: bool) -> float:
        """The deadline of the round that begins, in seconds."""
        usual = self._fixed or self._adapted()
        return max(usual, self._pause) if pause or (not self._fixed and len(self._seconds) < _ENOUGH) else usual

    def _adapted(self) -> float:
        if not self._seconds:
            return FLOOR
        middle = median(self._seconds)
        return max(FLOOR, middle + 6 * median(abs(value - middle) for value in self._seconds))
