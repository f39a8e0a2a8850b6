"""Logger: the interface through which a program that displays runs receives one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class LoggedRun:
    """A run, or the part of it that one process logs.

    id          the same for all processes and resumed parts of the run; letters and digits settings    by name, in types that
    JSON has; those that do not apply are left out text        the settings as a file for --config step        finished updates
    when this part begins evaluates   the process is the run's evaluator: it adds to the master's logs, and the run does not end
    with it
    """

    directory: Path
    id: str
    settings: Mapping[str, Any]
    text: str
    step: int = 0
    evaluates: bool = False

    @property
    def name(self) -> str:
        """Return the name of the directory, by which people refer to the run."""
        return self.directory.name


class Logger(Protocol):
    """Destination of a run's records. It is created, called and ended on one thread of its own, in the order of this list.

    An exception ends the logging, but not the training.
    """

    def begin(self, run: LoggedRun) -> None:
        """Begin a part of the run: the first one, a resumed one, or the first evaluation."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures of a step by tag, as `train/loss`: of a finished update, or of the evaluation of a checkpoint."""

    def event(self, step: int, text: str) -> None:
        """Log an event besides the steps, as in events.jsonl."""

    def end(self, summary: Mapping[str, Any] | None) -> None:
        """Flush everything. `summary`: the run's summary.json; None if the process evaluates, or the run ended without one."""
