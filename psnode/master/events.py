"""Events of a job other than its steps, shown on standard error and kept in events.jsonl."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from psnode.config.plain_json import to_json
from psnode.records.metrics import EVENTS

_LOG = logging.getLogger(__name__)
_LEVELS = dict.fromkeys(["calibrated", "planned", "learning rate", "promoted", "resharded", "returned"], logging.INFO)
# events whose text differs from their names
_SHOWN = {
    "lost": "is lost",
    "bypassed": "passes nothing on",
    "resharded": "the examples are dealt anew",
    "quorum": "too few workers",
}


class Events:
    """Logs events and appends them to the run's events.jsonl.

    A line holds the time in seconds since 1970, the number of finished updates, the event, its rank and its reason. `also` is
    called with the step and the text of each event.
    """

    def __init__(self, directory: Path, also: Callable[[int, str], None] | None = None) -> None:
        self._path = directory / EVENTS
        self._also = also

    def tell(self, event: str, step: int, rank: int | None = None, reason: str = "", *, outcome: str = "") -> None:
        """Log an event and append it to events.jsonl. If the file cannot be written, warn and continue.

        `outcome`: the consequence of the event for the run, which is logged but not recorded.
        """
        text = f"{'' if rank is None else f'rank {rank} '}{_SHOWN.get(event, event)}{f': {reason}' if reason else ''}"
        text += f"; {outcome}" if outcome else ""
        _LOG.log(_LEVELS.get(event, logging.WARNING), "step %d: %s", step, text)
        if self._also is not None:
            self._also(step, text)
        record = {"time": time.time(), "step": step, "event": event, "rank": rank, "reason": reason}
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(to_json(record).encode() + b"\n")
        except OSError as error:
            _LOG.warning("%s cannot be written: %s", self._path, error.strerror)
