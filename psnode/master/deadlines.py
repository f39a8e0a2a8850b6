"""Time that a round may take before the workers that block it are suspended."""

from __future__ import annotations

from collections import deque
from statistics import median

from psnode.config import Config
from psnode.exchange.shard.consistency import Rule
from psnode.transport.clock import Clock

MARGIN = 5.0  # seconds: a busy host or a collection of garbage takes less
_RECENT = 50
_ENOUGH = 3
_START = 5  # pauses' deadlines for the first round of a job: kernels compile, caches fill, and nothing is known yet


class AdaptiveTimeout:
    """median + max(5 s, 6 MAD) of recent rounds, or `fixed` seconds if that is above 0; at least `pause` in declared pauses.

    `least`: no round's deadline is shorter.

    Six median absolute deviations are four standard deviations of a normal distribution. Declared pauses are rounds that
    are known to take longer: the first ones, those after a checkpoint, a comparison of weights or the end of an epoch,
    and those that let a worker in. They have at least twice the time of the longest of the recent ones.
    """

    def __init__(self, fixed: float, pause: float, least: float = 0.0) -> None:
        self._fixed = fixed
        self._least = least
        self._pause = pause
        self._rounds: deque[float] = deque(maxlen=_RECENT)
        self._pauses: deque[float] = deque(maxlen=_RECENT)

    def add(self, seconds: float, *, pause: bool = False) -> None:
        """A round took `seconds`."""
        (self._pauses if pause else self._rounds).append(seconds)

    def of_round(self, *, pause: bool) -> float:
        """The deadline of the round that begins, in seconds: of those who hold it up while others do not."""
        usual = self._fixed or self._adapted()
        if pause or usual is None:
            return max(usual or 0.0, self._pause, 2 * max(self._pauses, default=0.0))
        return max(usual, self._least)

    @property
    def hard_limit(self) -> float:
        """Time that a round may take before so many workers are suspended that the job cannot go on."""
        return self.of_round(pause=True) * (1 if self._rounds or self._pauses else _START)

    def _adapted(self) -> float | None:
        if len(self._rounds) < _ENOUGH:
            return None
        middle = median(self._rounds)
        return middle + max(MARGIN, 6 * median(abs(value - middle) for value in self._rounds))


def patience_of(config: Config, rule: Rule) -> AdaptiveTimeout:
    """The patience that the configuration asks for.

    A synchronous round is of all workers: by default a stall suspends no worker before the deadline of pauses. Where rounds close
    without the slowest, deadlines follow them.
    """
    patient = config.deadline is None and not rule.rounds_go_on
    return AdaptiveTimeout(config.deadline or 0.0, config.pause_deadline, config.pause_deadline if patient else 0.0)


class RoundTimer:
    """The time of the open round by `clock`, and its deadline."""

    def __init__(self, patience: AdaptiveTimeout, clock: Clock) -> None:
        self.patience = patience
        self._clock = clock
        self._begun, self._pause = False, True
        self._opened = clock.now()
        self._seconds = 0.0
        self.deadline = self._opened

    def begin(self, *, pause: bool) -> None:
        """A round opens; the duration of the one before tells how long rounds usually take."""
        now = self._clock.now()
        if self._begun:
            self.patience.add(now - self._opened, pause=self._pause)
        self._begun = True
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
