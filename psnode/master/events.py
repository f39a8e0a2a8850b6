"""Events of a job beside its steps: told on standard error, and kept in events.jsonl."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

EVENTS = "events.jsonl"


class Events:
    """Appends to the run's events.jsonl: seconds since 1970, finished updates, what happened, to whom, and why."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / EVENTS

    def tell(self, event: str, step: int, rank: int | None = None, reason: str = "") -> None:
        """One event. A full disk is no reason to stop: the line on standard error remains."""
        who = "" if rank is None else f"rank {rank} "
        print(f"psnode: step {step}: {who}{event}{f': {reason}' if reason else ''}", file=sys.stderr, flush=True)
        record = {"time": time.time(), "step": step, "event": event, "rank": rank, "reason": reason}
        try:
            with self._path.open("ab", buffering=0) as file:
                file.write(json.dumps(record).encode() + b"\n")
        except OSError as error:
            print(f"psnode: {self._path} cannot be written: {error.strerror}", file=sys.stderr, flush=True)
