"""Events of a job beside its steps: told on standard error, and kept in events.jsonl."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

_LOG = logging.getLogger(__name__)

EVENTS = "events.jsonl"
_LEVELS = dict.fromkeys(["calibrated", "learning rate", "promoted", "resharded", "returned"], logging.INFO)


class Events:
    """Appends to the run's events.jsonl: seconds since 1970, finished updates, the event, its rank, and its reason."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS

    def tell(self, event: str, step: int, rank: int | None = None, reason: str = "") -> None:
        """One event. A full disk is no reason to stop: the line on standard error remains."""
        who = "" if rank is None else f"rank {rank} "
        _LOG.log(_LEVELS.get(event, logging.WARNING), "step %d: %s%s%s", step, who, event, f": {reason}" if reason else "")
        record = {"time": time.time(), "step": step, "event": event, "rank": rank, "reason": reason}
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._path, error.strerror)
