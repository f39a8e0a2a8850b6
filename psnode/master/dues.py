"""The versions that get a checkpoint, by their number and by time."""

from __future__ import annotations

from psnode.config import Config
from psnode.transport.clock import Clock


class CheckpointDues:
    """Says of each version in turn if it gets a checkpoint: by --eval-freq, by --checkpoint-minutes, and as the last one."""

    def __init__(self, config: Config, clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._last = clock.now()  # when one was due

    def is_due(self, version: int, *, last: bool) -> bool:
        """True if there is to be a checkpoint of `version`, the newest."""
        every, now = self._config.eval_freq, self._clock.now()
        old = 0 < 60 * self._config.checkpoint_minutes <= now - self._last
        due = last or old or (every > 0 and version % every == 0)
        self._last = now if due else self._last
        return due
