"""The choice of the versions that get a checkpoint."""

from __future__ import annotations

from psnode.config import Config
from psnode.protocol.round import Round
from psnode.transport.clock import Clock


class CheckpointDues:
    """Decides which versions get a checkpoint: those due by --eval-freq or --checkpoint-minutes, and the last version."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._last = clock.now()  # time at which a checkpoint was last due

    def is_due(self, complete: Round, *, last: bool) -> bool:
        """Return True if the version made by round `complete` gets a checkpoint. Call this once for each round, in order."""
        every, now = self._config.eval_freq, self._clock.now()
        old = 0 < 60 * self._config.checkpoint_minutes <= now - self._last
        due = last or old or (every > 0 and complete.reaches(every))
        self._last = now if due else self._last
        return due
