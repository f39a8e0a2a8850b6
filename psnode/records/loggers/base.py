"""The interface of loggers, through which display programs receive the records of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoggedRun:
    """A run, or the part of a run that one process logs.

    * directory: the run's directory
    * id: letters and digits, the same for all processes and resumed parts of the run
    * settings: by name, in types that JSON has, without settings that do not apply
    * text: the settings as a file for --config
    * step: number of finished updates when this part begins
    * evaluates: True if the process is the run's evaluator, which adds to the master's logs; its end does not end the run
    """

    directory: Path
    id: str
    settings: Mapping[str, Any]
    text: str
    step: int = 0
    evaluates: bool = False

    @property
    def name(self) -> str:
        """Return the name of the run's directory, by which people refer to the run."""
        return self.directory.name


class Logger(Protocol):
    """Destination of a run's records.

    A logger is created, called and ended on its own thread, which calls `begin` first and `end` last. An exception ends the
    logging, but not the training.
    """

    def begin(self, run: LoggedRun) -> None:
        """Begin a part of the run: the first part, a resumed part, or the first evaluation."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures of a finished update, or of the evaluation of a checkpoint, by tag such as `train/loss`."""

    def event(self, step: int, text: str) -> None:
        """Log an event, as in events.jsonl."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Flush all records. `summary` is the run's summary.json; None if the process evaluates, or the run ended without a
        summary."""
