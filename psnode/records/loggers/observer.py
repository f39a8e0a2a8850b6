"""The loggers that the settings choose, as one observer of a run."""

from __future__ import annotations

import importlib.util
import logging
import re
import secrets
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from psnode.codecs.registry.python_files import import_class
from psnode.config import Config
from psnode.config.files import read_json
from psnode.config.load import to_toml
from psnode.config.names import choose, names_codec_file
from psnode.config.plain_json import to_json
from psnode.errors import ConfigurationError, installing
from psnode.records.loggers.background import Background
from psnode.records.loggers.base import LoggedRun, Logger
from psnode.records.loggers.points import points
from psnode.records.metrics import SUMMARY, StepRecord, write_atomically

_LOG = logging.getLogger(__name__)

LOGGERS = "loggers.json"  # file in the run's directory, which holds the id of the run for loggers
_GROUP = "psnode.loggers"  # group of the entry points through which packages offer loggers
_PATIENCE = 60.0  # seconds after the run's end in which a logger may finish its queued calls
_OWN = {  # package of the logger -> module and class in psnode.records.loggers
    "tensorboard": "to_tensorboard:TensorBoard",
    "wandb": "to_wandb:WandB",
    "mlflow": "to_mlflow:MLflow",
    "trackio": "to_trackio:Trackio",
}


def chosen(config: Config) -> dict[str, Callable[[], Logger]]:
    """Return functions that create the selected loggers of `config`, by name. A file that --log-to names is executed.

    Raises ConfigurationError for an unknown name or a missing package.
    """
    names = list(config.log_to)
    if config.tensorboard or (config.tensorboard is None and importlib.util.find_spec("tensorboard")):
        names.append("tensorboard")
    return dict(map(_maker, dict.fromkeys(names)))


def _maker(name: str) -> tuple[str, Callable[[], Logger]]:
    if names_codec_file(name):
        file, _, attribute = name.rpartition(":")
        return name, import_class(Path(file), attribute, "logger")
    offered = {point.name: point for point in entry_points(group=_GROUP)}
    name = choose("logger", name, [*_OWN, *offered], ", and path/to/logger.py:NAME for one of your own")
    if name in offered:
        return name, offered[name].load()
    if importlib.util.find_spec(name) is None:
        raise ConfigurationError(f"--log-to {name} needs the package {name}: {installing('loggers')}, or leave it out")
    module, _, attribute = _OWN[name].partition(":")
    return name, lambda: getattr(import_module(f"psnode.records.loggers.{module}"), attribute)()


class Observer:
    """Observer that passes a run's records to its loggers, each on its own thread. `begin` creates the loggers."""

    def __init__(self, makers: Mapping[str, Callable[[], Logger]], directory: Path) -> None:
        self._makers = makers
        self._directory = directory
        self._threads: list[Background] = []
        self._before: list[Callable[[Logger], None]] = []
        self._evaluates = False

    def begin(self, config: Config, step: int = 0, *, evaluates: bool = False) -> None:
        """Create the loggers when the run continues after `step`, or when its evaluator has its first result.

        Later calls have no effect.
        """
        if self._threads or not self._makers:
            return
        self._evaluates = evaluates
        run = LoggedRun(self._directory, _id(self._directory), config.stated(), to_toml(config), step, evaluates)
        self._threads = [Background(name, make) for name, make in self._makers.items()]
        self._put(lambda logger: logger.begin(run))
        for call in self._before:
            self._put(call)
        self._before = []

    def write(self, record: StepRecord) -> None:
        """Log a finished step."""
        self.scalars(record.step, dict(points(record)))

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log figures of a step by tag."""
        self._put(lambda logger: logger.scalars(step, values))

    def event(self, step: int, text: str) -> None:
        """Log an event. Events before `begin` are passed on once the loggers exist."""
        if self._threads or not self._makers:
            self._put(lambda logger: logger.event(step, text))
        else:
            self._before.append(lambda logger: logger.event(step, text))

    def extend(self, last: int) -> None:
        """Do nothing: a record states its own step, not the end of the run."""

    def close(self) -> None:
        """Do nothing: the loggers still wait for the summary, which `end` passes on."""

    def end(self) -> None:
        """Pass on the run's summary, if there is one, and wait up to a minute for the loggers."""
        summary = None if self._evaluates or not self._threads else _summary(self._directory)
        self._put(lambda logger: logger.end(summary))
        end = time.monotonic() + _PATIENCE
        for thread in self._threads:
            thread.close(end)
        self._threads = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.end()

    def _put(self, call: Callable[[Logger], None]) -> None:
        for thread in self._threads:
            thread.put(call)


def _summary(directory: Path) -> dict[str, Any] | None:
    try:
        return dict(read_json(directory / SUMMARY))
    except (OSError, ValueError, TypeError):
        return None


def _id(directory: Path) -> str:
    """Return the id in the run's directory, or a new id, which is written to the directory if possible."""
    path = directory / LOGGERS
    try:
        found = read_json(path)["id"]
        if re.fullmatch(r"[0-9a-f]{12}", found):
            return str(found)
    except (OSError, ValueError, TypeError, KeyError):
        pass
    new = secrets.token_hex(6)
    try:
        write_atomically(path, to_json({"id": new}).encode() + b"\n")
    except OSError as error:
        _LOG.warning("%s cannot be written: %s: a resumed run will be another one for its loggers", path, error.strerror)
    return new
