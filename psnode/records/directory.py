"""The run's directory: its lock, its records, and the start of a resumed run.

Existing files of the run are checked before any is changed, so that a job that cannot start loses nothing.
"""

from __future__ import annotations

import contextlib
import functools
import platform
import secrets
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import xxhash
from filelock import FileLock

import psnode
from psnode.config import Config
from psnode.config.changes import plan_changes, resume_conflicts
from psnode.config.files import read_json, require_plain
from psnode.config.plain_json import to_json
from psnode.config.resolve import resolve
from psnode.config.scheme import Scheme
from psnode.errors import CheckpointError, ConfigurationError, PsnodeError
from psnode.plans.groups import Plan
from psnode.plans.prediction import Prediction
from psnode.protocol.link_rates import LinkRates
from psnode.records import checkpoint, staging
from psnode.records.branches import BEGUN, SINCE
from psnode.records.directory_lock import LOCK, locked
from psnode.records.generations import Generation, continued
from psnode.records.metrics import EMA_EVALUATIONS, EVALUATIONS, METRICS, SUMMARY, cut_after, totals, write_atomically
from psnode.tasks.tensor_names import renaming

CONFIG = "config.json"
_T = TypeVar("_T")
_PACKAGES = ("numpy", "numba", "torch", "torchvision", "mpi4py", "safetensors")


@dataclass(frozen=True)
class ResumePoint:
    """Start of a resumed run: its plan, its scheme, its latest checkpoint if there is one, and its parts so far.

    `plan` is None if changed settings (`changes`) give the run another plan. `first_plan` is the plan with which the run's
    checkpoints of layout 1 were written. `parameter_groups` are the groups in config.json. `config` is the run's
    configuration before the resume. `prediction`: the prediction of a step under `plan`, if any. `links`: the link rates
    that the run measured, if any.
    """

    checkpoint: checkpoint.Checkpoint | None = None
    plan: Plan | None = None
    parts: tuple[Generation, ...] = ()
    scheme: Scheme | None = None
    first_plan: Plan | None = None
    changes: tuple[str, ...] = ()
    parameter_groups: tuple[dict[str, Any], ...] = ()
    config: Config | None = None
    prediction: Prediction | None = None
    links: LinkRates | None = None

    @property
    def step(self) -> int:
        """Return the step after which training continues."""
        return self.checkpoint.step if self.checkpoint else 0

    def resharded(self, workers: int) -> bool:
        """Return True if the checkpoint was written with a number of workers other than `workers`."""
        return self.checkpoint is not None and self.checkpoint.facts.get("workers", workers) != workers


@dataclass(frozen=True)
class RunDirectory:
    """A directory that belongs to this job until `lock` is released.

    `mark` is the content of the directory's mark file. The learning rate of `config` is resolved; `notes` are lines about the
    learning rate for the user. `prediction`: the prediction of a step, if any. `links`: the measured link rates, if any.
    """

    path: Path
    mark: str
    config: Config
    scheme: Scheme
    resume_point: ResumePoint
    lock: FileLock
    notes: tuple[str, ...] = ()
    prediction: Prediction | None = None
    links: LinkRates | None = None
    _recorded: dict[str, Any] = field(default_factory=dict, compare=False)  # the content of config.json

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.lock.release()

    def parts(self, workers: int) -> tuple[Generation, ...]:
        """Return the parts of the run, each with its first step and number of workers, including the part that begins now."""
        return continued(self.resume_point.parts, self.resume_point.step, workers)

    @property
    def origin(self) -> dict[str, Any]:
        """The manifest entries that identify this start of the job.

        They distinguish its checkpoints from those of abandoned branches.
        """
        return {BEGUN: f"{xxhash.xxh3_64_intdigest(self.mark.encode()):016x}", SINCE: self.resume_point.step}

    def begin(self, plan: Plan, workers: int, parameter_groups: Sequence[dict[str, Any]] = ()) -> None:
        """Prepare the directory for training: remove leftovers and write config.json.

        Removes the records of steps that will be repeated, half-written files, and the earlier summary.
        """
        staging.sweep(self.path)
        cut_after(self.path / METRICS, self.resume_point.step)
        for file in (EVALUATIONS, EMA_EVALUATIONS):
            with contextlib.suppress(CheckpointError):  # training does not need these files, and their readers report the error
                cut_after(self.path / file, self.resume_point.step)
        (self.path / SUMMARY).unlink(missing_ok=True)
        content = {
            "psnode": psnode.__version__,
            "workers": workers,
            "parts": self.parts(workers),
            "config": self.config.to_dict(),
            "scheme": self.scheme.to_dict(),
            "plan": plan.to_dict(),
            "versions": installed_versions(),
        }
        if self.prediction is not None:
            content["prediction"] = self.prediction.to_dict()
        if self.links is not None:
            content["links"] = self.links._asdict()
        if parameter_groups:
            content["parameter_groups"] = parameter_groups
        first = self.resume_point.first_plan
        if first is not None and first != plan:
            content["first_plan"] = first.to_dict()
        self._recorded.update(content)
        self._write_config()

    def record(self, parts: Sequence[Generation]) -> None:
        """Record in config.json that the run is now in the last of `parts`."""
        self._recorded["parts"] = parts
        self._write_config()

    def restore(self) -> bool:
        """Write config.json again if another process has removed it, and return True if so.

        A run without config.json cannot be resumed.
        """
        if not self._recorded or (self.path / CONFIG).exists():
            return False
        self.path.mkdir(parents=True, exist_ok=True)
        self._write_config()
        return True

    def _write_config(self) -> None:
        write_atomically(self.path / CONFIG, to_json(self._recorded, indent=1).encode() + b"\n")


def claim(config: Config) -> RunDirectory:
    """Create the directory of a new run, or enter the directory of the run to resume, and lock it against other jobs.

    A resumed run keeps the scheme with which it began, even if the tables of schemes have changed since. Raises
    ConfigurationError if the directory holds another run or another job is at work in it, and CheckpointError if its records
    cannot be read.
    """
    path = config.directory.resolve()
    scheme = None if config.resume else resolve(config)
    if config.resume:
        saved_run(path)
    elif any((path / name).exists() for name in (CONFIG, METRICS, checkpoint.CHECKPOINTS)):
        files = {entry.name for entry in path.iterdir()}
        if checkpoint.CHECKPOINTS in files or holds_run(path, files):
            raise ConfigurationError(f"{path} already holds a run: continue it with --resume or choose another --train-dir")
        raise ConfigurationError(f"{path / CONFIG} is another program's, not of a run: choose another --train-dir")
    mark = secrets.token_hex(16)
    _require_plain(path, CheckpointError if config.resume else ConfigurationError)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = locked(path)
        write_atomically(path / checkpoint.MARK, mark.encode())
    except OSError as error:
        raise ConfigurationError(f"--train-dir {path} cannot be written: {error.strerror}; choose another") from error
    try:
        config, before = _resumed(path, config) if config.resume else (config, ResumePoint())
    except BaseException:
        lock.release()
        raise
    scheme = before.scheme or scheme or resolve(config)
    notes = () if config.resume else scheme.notes(config.lr)
    config = replace(config, lr=scheme.lr) if config.lr is None else config
    return RunDirectory(path, mark, config, scheme, before, lock, notes, before.prediction, before.links)


def _require_plain(path: Path, kind: type[PsnodeError]) -> None:
    """Check that no file to which the run appends is a link, a pipe or a device.

    The run would write to the target of a link, and would wait for the reader of a pipe. Raises an error of type `kind`.
    """
    try:
        require_plain(path / LOCK, *path.glob("*.jsonl"))
    except OSError as error:
        problem = f"{error.filename or path} cannot be used: {error.strerror}"
        raise kind(f"{problem}; remove it, or choose another --train-dir") from error


def saved_run(path: Path) -> dict[str, Any]:
    """Return the contents of a run's config.json. Raises ConfigurationError if the file is missing, CheckpointError if it is
    damaged."""
    try:
        saved = read_json(path / CONFIG)
        if not isinstance(saved, dict) or not {"config", "plan", "workers"} <= set(saved):
            raise ValueError("config, plan or workers is missing")
    except FileNotFoundError:
        raise ConfigurationError(f"{path} holds no run: it has no {CONFIG}; check --train-dir") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read: {error}") from error
    return saved


def holds_run(path: Path, files: Collection[str]) -> bool:
    """Return True if the directory `path`, with the file names `files`, belongs to a run, even if the run's files are damaged.

    Other programs also write files named config.json. Such a file counts only if it has the content of a run, or if the
    directory has a mark file.
    """
    if METRICS in files or CONFIG not in files:
        return METRICS in files
    with contextlib.suppress(PsnodeError):
        saved_run(path)
        return True
    return checkpoint.MARK in files


def saved_config(path: Path) -> Config:
    """Return the configuration in a run's config.json.

    Raises ConfigurationError if the file is missing, CheckpointError if it is damaged.
    """
    return _intact(path, lambda saved: Config.from_dict(saved["config"]))


def _intact(path: Path, read: Callable[[dict[str, Any]], _T]) -> _T:
    saved = saved_run(path)
    try:
        return read(saved)
    except (PsnodeError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        problem = f"{path / CONFIG} cannot be used ({error})"
        raise CheckpointError(f"{problem}: restore a copy, or start again with another --train-dir") from error


def _resumed(path: Path, config: Config) -> tuple[Config, ResumePoint]:
    earlier, plan = saved_config(path), _intact(path, lambda saved: _plan(saved["plan"]))
    parts = _intact(path, lambda saved: _parts(saved.get("parts", [[0, saved["workers"]]])))
    scheme = _saved_scheme(path, earlier)
    if config.threads == 0:
        config = replace(config, threads=earlier.threads)
    if config.lr is None:
        config = replace(config, lr=earlier.lr)
    if config.group_bytes == 0 and config.group_by == "bytes":  # auto: use the size with which the run began
        config = replace(config, group_bytes=earlier.group_bytes)
    if conflicts := resume_conflicts(config, earlier):
        raise ConfigurationError(f"--resume needs the configuration of the run in {path}: {conflicts[0]}")
    changes = tuple(plan_changes(config, earlier))
    first = _intact(path, lambda saved: _plan(saved["first_plan"]) if "first_plan" in saved else plan)
    newest = checkpoint.latest(path)
    found = checkpoint.Checkpoint.open(newest, first) if newest else None
    if found is not None:
        found.verify()
    totals(path / METRICS, found.step if found else 0)
    groups = _intact(path, lambda saved: _parameter_groups(saved.get("parameter_groups", [])))
    predicted = None if changes else _intact(path, lambda saved: _prediction(saved.get("prediction")))
    links = _intact(path, lambda saved: LinkRates.recorded(saved["links"]) if "links" in saved else None)
    return config, ResumePoint(found, None if changes else plan, parts, scheme, first, changes, groups, earlier, predicted, links)


def _saved_scheme(path: Path, config: Config) -> Scheme:
    """Return the scheme with which the run in `path` began."""
    recorded = _intact(path, lambda saved: Scheme.from_dict(saved["scheme"]) if "scheme" in saved else None)
    return recorded or resolve(config, unrecorded=True)


def _parts(saved: Any) -> tuple[Generation, ...]:
    parts = tuple(Generation(*(int(number) for number in part)) for part in saved)
    firsts = [part.first for part in parts]
    if not parts or firsts != sorted({0, *firsts}) or any(part.workers < 1 for part in parts):
        raise ValueError(f"its parts are {saved}")
    return parts


def _plan(saved: Any) -> Plan:
    """Return a recorded plan, with its tensors under their plain names."""
    plan = Plan.from_dict(saved)
    rename = renaming([tensor.name for tensor in plan.tensors])
    return replace(plan, tensors=tuple(replace(tensor, name=rename(tensor.name)) for tensor in plan.tensors))


def _prediction(saved: Any) -> Prediction | None:
    return None if saved is None else Prediction.from_dict(saved)


def _parameter_groups(saved: Any) -> tuple[dict[str, Any], ...]:
    """Return the recorded parameter groups, each with its settings and, in `params`, the plain names of its tensors."""
    if not isinstance(saved, list) or not all(isinstance(group, dict) and _is_group(**group) for group in saved):
        raise ValueError(f"its parameter_groups are {str(saved)[:60]}")
    rename = renaming([name for group in saved for name in group["params"]])
    return tuple({**group, "params": [rename(name) for name in group["params"]]} for group in saved)


def _is_group(params: Any = None, **settings: Any) -> bool:
    names = isinstance(params, list) and all(isinstance(name, str) for name in params)
    return names and all(isinstance(value, (int, float)) for value in settings.values())


def installed_versions() -> dict[str, str]:
    """Return the versions of Python, the platform, and the packages on which a run's results depend."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    return found | {package: version for package in _PACKAGES if (version := _version(package))}


@functools.cache
def _version(package: str) -> str:
    """Return the installed version of a package, or an empty text. Reading it takes milliseconds, so it is read once."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
