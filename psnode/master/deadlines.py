"""The time that a round may take before the workers that block it are suspended."""

from __future__ import annotations

from collections import deque
from statistics import median

from psnode.config import Config
from psnode.exchange.shard.consistency import Rule
from psnode.transport.clock import Clock

MARGIN = 5.0  # seconds, longer than the stalls of a busy host or of garbage collection
_RECENT = 50
_ENOUGH = 3
_START = 5  # pause deadlines for the first round of a job, in which kernels compile and caches fill; no duration is known yet


class AdaptiveTimeout:
    """The deadline of a round, from the durations of recent rounds.

    The deadline is median + max(5 s, 6 MAD) of the recent rounds, or `fixed` seconds if `fixed` is above 0. It is never
    below `least` seconds. MAD is the median absolute deviation; 6 MAD are four standard deviations of a normal distribution.

    Declared pauses are rounds that are known to take longer: the first rounds, rounds during which a checkpoint is made, rounds
    after a comparison of weights or after the end of an epoch, rounds in which a worker joins, and all rounds of workers in one
    process. The deadline of a pause is at least `pause` seconds, and at least twice the longest recent pause.
    """

    def __init__(self, fixed: float, pause: float, least: float = 0.0) -> None:
        self._fixed = fixed
        self._least = least
        self._pause = pause
        self._rounds: deque[float] = deque(maxlen=_RECENT)
        self._pauses: deque[float] = deque(maxlen=_RECENT)

    def add(self, seconds: float, *, pause: bool = False) -> None:
        """Record that a round took `seconds`."""
        (self._pauses if pause else self._rounds).append(seconds)

    def of_round(self, *, pause: bool) -> float:
        """Return the seconds after which workers that hold up the coming round may be suspended."""
        usual = self._fixed or self._adapted()
        if pause or usual is None:
            return max(usual or 0.0, self._pause, 2 * max(self._pauses, default=0.0))
        return max(usual, self._least)

    @property
    def hard_limit(self) -> float:
        """Seconds after which workers that hold up a round are suspended even if too few workers remain to continue the job."""
        return self.of_round(pause=True) * (1 if self._rounds or self._pauses else _START)

    def _adapted(self) -> float | None:
        if len(self._rounds) < _ENOUGH:
            return None
        middle = median(self._rounds)
        return middle + max(MARGIN, 6 * median(abs(value - middle) for value in self._rounds))


def patience_of(config: Config, rule: Rule) -> AdaptiveTimeout:
    """Return the deadlines of rounds under `config` and the consistency `rule`.

    A synchronous round needs all workers, so by default no worker is suspended before the pause deadline. If rounds close
    without the slowest workers, deadlines follow the durations of recent rounds.
    """
    patient = config.deadline is None and not rule.rounds_go_on
    return AdaptiveTimeout(config.deadline or 0.0, config.pause_deadline, config.pause_deadline if patient else 0.0)


class RoundTimer:
    """Measures the open round by `clock`, and sets its deadline."""

    def __init__(self, patience: AdaptiveTimeout, clock: Clock) -> None:
        self.patience = patience
        self._clock = clock
        self._begun, self._pause = False, True
        self._opened = clock.now()
        self._seconds = 0.0
        self.deadline = self._opened

    def begin(self, *, pause: bool) -> None:
        """Start timing a round that opens now, and record the duration of the previous round."""
        now = self._clock.now()
        if self._begun:
            self.patience.add(now - self._opened, pause=self._pause)
        self._begun = True
        self._pause, self._opened = pause, now
        self._seconds = self.patience.of_round(pause=pause)
        self.deadline = now + self._seconds

    def extend(self) -> None:
        """Postpone the deadline: set it to the present time plus the full time that the round may take."""
        self.deadline = self._clock.now() + self._seconds

    @property
    def taken(self) -> float:
        """Seconds since the round was opened."""
        return self._clock.now() - self._opened
