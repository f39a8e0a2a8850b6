"""The run's directory: who may write into it, what it says of the run, where a resumed run starts."""

from __future__ import annotations

import json
import platform
import secrets
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psnode
from psnode import checkpoint
from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.metrics import METRICS, SUMMARY, cut_after, write_atomically
from psnode.plan import Plan

CONFIG = "config.json"
_PACKAGES = ("numpy", "numba", "torch", "torchvision", "mpi4py", "safetensors")


@dataclass(frozen=True)
class Before:
    """What earlier parts of a resumed run leave: totals up to the checkpoint that it starts from, if there is one."""

    checkpoint: checkpoint.Checkpoint | None = None
    plan: Plan | None = None
    uplink_bytes: int = 0
    downlink_bytes: int = 0
    seconds: float = 0.0

    @property
    def step(self) -> int:
        """The step that training continues after."""
        return self.checkpoint.step if self.checkpoint else 0


@dataclass(frozen=True)
class RunDirectory:
    """A directory that belongs to this run from now on. `mark` is what its mark file holds."""

    path: Path
    mark: str
    config: Config
    before: Before

    def describe(self, plan: Plan, workers: int) -> None:
        """Write config.json."""
        content = {
            "psnode": psnode.__version__,
            "workers": workers,
            "config": self.config.to_dict(),
            "plan": plan.to_dict(),
            "versions": _versions(),
        }
        write_atomically(self.path / CONFIG, json.dumps(content, indent=1).encode() + b"\n")


def claim(config: Config, workers: int) -> RunDirectory:
    """Make the directory of a new run, or enter that of the run to resume. Nothing is overwritten before all checks pass.

    Raises ConfigurationError if it holds another run, CheckpointError if what it holds cannot be read.
    """
    path = config.directory.resolve()
    if config.resume:
        config, before = _resumed(path, config, workers)
    else:
        before = Before()
        if any((path / name).exists() for name in (CONFIG, METRICS, checkpoint.CHECKPOINTS)):
            raise ConfigurationError(f"{path} already holds a run: continue it with --resume or choose another --train-dir")
    try:
        path.mkdir(parents=True, exist_ok=True)
        (path / SUMMARY).unlink(missing_ok=True)
        mark = secrets.token_hex(16)
        write_atomically(path / checkpoint.MARK, mark.encode())
    except OSError as error:
        raise ConfigurationError(f"--train-dir {path} cannot be written: {error.strerror}; choose another") from error
    return RunDirectory(path, mark, config, before)


def saved_run(path: Path) -> dict[str, Any]:
    """The contents of a run's config.json. ConfigurationError if there is none, CheckpointError if it is damaged."""
    try:
        saved = json.loads((path / CONFIG).read_bytes())
        if not isinstance(saved, dict) or not {"config", "plan", "workers"} <= set(saved):
            raise ValueError("config, plan or workers is missing")
    except FileNotFoundError:
        raise ConfigurationError(f"{path} holds no run: it has no {CONFIG}; check --train-dir") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path / CONFIG} cannot be read: {error}") from error
    return saved


def _resumed(path: Path, config: Config, workers: int) -> tuple[Config, Before]:
    saved = saved_run(path)
    earlier = Config.from_dict(saved["config"])
    if config.threads == 0:
        config = replace(config, threads=earlier.threads)
    conflicts = config.resume_conflicts(earlier)
    if saved["workers"] != workers:
        conflicts.append(f"the run has {saved['workers']} workers, this job has {workers}")
    if conflicts:
        raise ConfigurationError(f"--resume needs the configuration of the run in {path}: {conflicts[0]}")
    newest = checkpoint.latest(path)
    found = checkpoint.Checkpoint.open(newest) if newest else None
    up, down, seconds = cut_after(path / METRICS, found.step if found else 0)
    return config, Before(found, Plan.from_dict(saved["plan"]), up, down, seconds)


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found
