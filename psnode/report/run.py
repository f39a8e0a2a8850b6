"""A run, as read from its directory: all readable parts, and a line for every file that cannot be used.

No content of a directory is executed, no link to another place is followed, and no value is assumed to have the expected
type. Therefore the same code can read old, incomplete, foreign and hostile directories.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from psnode.config.coding_name import coding_name
from psnode.config.files import read_json
from psnode.config.scheme import Scheme
from psnode.errors import ConfigurationError, PsnodeError
from psnode.plans.groups import Plan
from psnode.plans.prediction import Prediction
from psnode.records.branches import evaluations
from psnode.records.directory import CONFIG, saved_run
from psnode.records.directory_lock import at_work
from psnode.records.machines import MACHINES
from psnode.records.metrics import EMA_EVALUATIONS, EVALUATIONS, EVENTS, METRICS, SUMMARY, compression_ratio, read_records
from psnode.records.timeline import TIMELINE
from psnode.report.steps import Steps, columns_of, finite

_MOST_EVENTS = 10_000
_MOST_TIMELINE = 1 << 27  # maximum bytes of timeline.json
_T = TypeVar("_T")


@dataclass
class Run:
    """All data of a run that its directory contains.

    `problems`: a line for each file, or part of a file, that could not be used and counts as missing. `settings`, `scheme`: the
    recorded values by name. `prediction`: the prediction of a step, or None. `machines`: the content of machines.json.
    `summary`: empty until the run has ended.
    """

    path: Path
    name: str
    problems: list[str] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)
    scheme: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, Any] = field(default_factory=dict)
    workers: int | None = None
    plan: Plan | None = None
    prediction: Prediction | None = None
    steps: Steps = field(default_factory=Steps)
    evaluations: dict[str, Steps] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)
    machines: dict[str, Any] = field(default_factory=dict)
    ended: str = ""

    @property
    def reached(self) -> int:
        """Return the number of the last finished update that is recorded; 0 if there is no record."""
        return int(self.steps.number[-1]) if len(self.steps) else 0

    @property
    def coding(self) -> str | None:
        """Return the name of the scheme or, if another codec has replaced the scheme's own, the spec of this codec.

        Returns None if it is unknown.
        """
        name, codec = self.scheme.get("name"), self.scheme.get("codec")
        if not isinstance(name, str):
            return None
        return coding_name(name, codec if isinstance(codec, str) else None, replaced=bool(self.settings.get("codec")))

    @property
    def topology(self) -> str | None:
        """Return the recorded topology; None if it is unknown."""
        topology = self.settings.get("topology")
        return topology if isinstance(topology, str) else None

    @property
    def sent(self) -> float:
        """Return the bytes of gradients and weights that the whole job has sent."""
        return self.steps.sum("uplink_bytes", "downlink_bytes")

    @property
    def ratio(self) -> float | None:
        """Return the bytes that float32 would have taken, divided by the bytes sent; None if they are unknown."""
        if self.plan is None:
            return finite(self.summary.get("compression_ratio"))
        return compression_ratio(self.plan.size, round(self.steps.sum("workers")), round(self.sent))

    @property
    def best(self) -> float | None:
        """Return the best accuracy (top1) of all evaluations, as a fraction; None if no accuracy was measured."""
        found = [value for table in self.evaluations.values() for value in table.known("top1")]
        return max(found, default=None)

    @property
    def best_loss(self) -> float | None:
        """Return the lowest loss of all evaluations; None if the run has no evaluation."""
        found = [value for table in self.evaluations.values() for value in table.known("loss")]
        return min(found, default=None)

    def last(self, name: str) -> float | None:
        """Return the latest value of the quantity `name` of the steps; None if no step has it."""
        known = self.steps.known(name)
        return float(known[-1]) if known.size else None

    def timeline(self) -> list[dict[str, Any]]:
        """Return the events in timeline.json. The result is empty if the file is missing or cannot be used."""
        content: Any = self._try(TIMELINE, lambda: read_json(self.path / TIMELINE, _MOST_TIMELINE), {})
        events = content.get("traceEvents") if isinstance(content, dict) else None
        return [event for event in events if isinstance(event, dict)] if isinstance(events, list) else []

    def _try(self, file: str, read: Callable[[], _T], otherwise: _T) -> _T:
        """Return the result of `read`, which reads `file`. If it fails, return `otherwise`.

        A failure adds a line to `problems`, unless the file is missing.
        """
        try:
            return read()
        except FileNotFoundError:
            return otherwise
        except PsnodeError as error:
            self.problems.append(str(error))
        except (OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            self.problems.append(f"{self.path / file} cannot be used: {reason}")
        return otherwise


def read(path: Path, name: str = "") -> Run:
    """Return the run in `path`. Raises ConfigurationError if the directory holds no run."""
    if not any((path / file).exists() for file in (CONFIG, METRICS)):
        raise ConfigurationError(f"{path} holds no run: it has neither {CONFIG} nor {METRICS}; name the directory of a run")
    run = Run(path, name or path.resolve().name)
    _read_config(run)
    run.steps = _table(run, METRICS, partial(read_records, path / METRICS))
    for file in (EVALUATIONS, EMA_EVALUATIONS):
        table = _table(run, file, partial(evaluations, path, file))
        if len(table):
            run.evaluations[file] = table
    run.events = run._try(EVENTS, lambda: list(itertools.islice(read_records(path / EVENTS), _MOST_EVENTS)), [])
    run.summary = run._try(SUMMARY, lambda: _mapping(read_json(path / SUMMARY)), {})
    run.machines = run._try(MACHINES, lambda: _mapping(read_json(path / MACHINES)), {})
    run.ended = _ended(run)
    return run


def _read_config(run: Run) -> None:
    saved: dict[str, Any] = run._try(CONFIG, lambda: saved_run(run.path), {})
    if not saved:
        return
    run.settings = run._try(CONFIG, lambda: _mapping(saved["config"]), {})
    run.scheme = run._try(CONFIG, lambda: _scheme(saved, run.settings), {})
    run.versions = run._try(CONFIG, lambda: {"psnode": saved.get("psnode"), **_mapping(saved.get("versions", {}))}, {})
    run.plan = run._try(CONFIG, lambda: Plan.from_dict(saved["plan"]), None)
    predicted = saved.get("prediction")
    run.prediction = run._try(CONFIG, lambda: None if predicted is None else Prediction.from_dict(predicted), None)
    run.workers = saved["workers"] if type(saved["workers"]) is int else None


def _scheme(saved: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Return the recorded scheme of a run, with all its parts resolved.

    If a resolved scheme is not recorded, return the requested one from `settings`. It is not resolved here, since this might
    execute a file.
    """
    if "scheme" in saved:
        return Scheme.from_dict(_mapping(saved["scheme"])).to_dict()
    asked = {name: settings.get(name) for name in ("codec", "feedback", "aggregator", "downlink")}
    return {"name": settings.get("scheme"), **asked}


def _mapping(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("it does not hold an object")
    return value


def _table(run: Run, file: str, read: Callable[[], Iterable[dict[str, Any]]]) -> Steps:
    """Return the records that `read` yields as columns. Records from the first invalid one on are left out."""
    records: list[dict[str, Any]] = []
    run._try(file, lambda: records.extend(_sane(read())), None)
    return columns_of(records)


def _sane(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for record in records:
        if not 0 <= record["step"] < 1 << 53:
            raise ValueError("a step is out of range")
        yield record


def _ended(run: Run) -> str:
    if run.summary:
        reason, code = str(run.summary.get("stop_reason")), run.summary.get("exit_code")
        return reason if code == 0 else f"{reason} (exit code {code})"
    if at_work(run.path):
        return "running"
    return "killed or crashed" if len(run.steps) else "killed or starting"


def read_all(paths: Sequence[Path]) -> list[Run]:
    """Return the runs in `paths`. A run is named by its path relative to their common folder; a single run, by its own folder."""
    resolved = [path.resolve() for path in paths]
    if len(resolved) > 1:
        common = Path(os.path.commonpath(resolved))
        names = [str(path.relative_to(common)) for path in resolved]
    else:
        names = [path.name for path in resolved]
    return [read(path, name if name != "." else path.name) for path, name in zip(resolved, names, strict=True)]
