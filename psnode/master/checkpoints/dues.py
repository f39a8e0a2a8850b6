"""The choice of the versions that get a checkpoint."""

from __future__ import annotations

from psnode.config import Config
from psnode.transport.clock import Clock


class CheckpointDues:
    """Decides which versions get a checkpoint: by --eval-freq, by --checkpoint-minutes, and the last version."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._last = clock.now()  # time at which a checkpoint was last due

    def is_due(self, version: int, *, last: bool) -> bool:
        """Return True if `version`, the newest, gets a checkpoint. Call once for each version in turn."""
        every, now = self._config.eval_freq, self._clock.now()
        old = 0 < 60 * self._config.checkpoint_minutes <= now - self._last
        due = last or old or (every > 0 and version % every == 0)
        self._last = now if due else self._last
        return due
