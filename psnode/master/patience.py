"""How long a round may take before those who hold it up are put aside."""

from __future__ import annotations

from collections import deque
from statistics import median

from psnode.clock import Clock

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


class RoundClock:
    """The time of the open round by `clock`, and its deadline."""

    def __init__(self, patience: Patience, clock: Clock) -> None:
        self.patience = patience
        self._clock = clock
        self._pause = True
        self._opened = clock.now()
        self._seconds = 0.0
        self.deadline = self._opened

    def begin(self, *, pause: bool) -> None:
        """A round opens; what the one before took tells how long a round usually takes, unless it was a declared pause."""
        now = self._clock.now()
        if not self._pause:
            self.patience.add(now - self._opened)
        self._pause, self._opened = pause, now
        self._seconds = self.patience.of_round(pause=pause)
        self.deadline = now + self._seconds

    def extend(self) -> None:
        """Give the round as long again, from now on."""
        self.deadline = self._clock.now() + self._seconds

    @property
    def taken(self) -> float:
        """Seconds since the round was opened."""
        return self._clock.now() - self._opened
