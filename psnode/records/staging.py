"""Checkpoints in the making: parts of workers, staged files, and the step that writes the manifest and publishes them.

A checkpoint is written into a directory whose name starts with a dot, every file and the directory are
fsynced, the directory is renamed, and only then `latest` is replaced.

Workers write beside it, into a directory of the checkpoint's step and of this start of the job. The master moves
files out of it; the rest is deleted with that directory before anything is published. So the manifest lists those files alone,
and no worker has ever known a path of the checkpoint.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config.files import delete
from psnode.records.checkpoint import (
    CHECKPOINTS,
    LATEST,
    LAYOUT,
    MANIFEST,
    digest,
    name_latest,
    remove,
    step_directory,
    worker_file,
)
from psnode.records.metrics import fsync_directory
from psnode.records.tensorfile import write_tensors

if TYPE_CHECKING:
    import torch

_UNFINISHED = re.compile(r"\.step-\d{8,}(\.[0-9a-f]{16})?(\.gone)?|\.latest\.\d+")


def _parts_path(train_dir: Path, step: int, job: int) -> Path:
    """The directory in which workers of `job`, as its frames carry it, write their parts of the checkpoint of `step`."""
    return train_dir / CHECKPOINTS / f".{step_directory(step)}.{job:016x}"


def write_part(train_dir: Path, step: int, job: int, rank: int, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write and fsync a worker's part of an unfinished checkpoint: all of it, or nothing that anybody takes for it.

    FileNotFoundError if nobody waits for that checkpoint any more; OSError if the disk does not take it.
    """
    place = _parts_path(train_dir, step, job)
    unfinished = place / f".{worker_file(rank)}"
    write_tensors(unfinished, tensors)
    unfinished.rename(place / worker_file(rank))


class StagedCheckpoint:
    """A checkpoint of `step` in the making, invisible to readers until `publish`. It will hold the files added or adopted.

    `job`: that of the workers whose parts may be adopted.
    """

    def __init__(self, train_dir: Path, step: int, job: int = 0) -> None:
        self.step = step
        self._root = train_dir / CHECKPOINTS
        self._path = self._root / f".{step_directory(step)}"
        self._parts = _parts_path(train_dir, step, job)
        self._names = set[str]()
        for path in (self._path, self._parts):
            delete(path)
            path.mkdir(parents=True)
        fsync_directory(train_dir)

    def add(self, name: str, content: bytes) -> None:
        """Write file `name` (a relative path)."""
        write_file(self._place(name), content)

    def add_tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write safetensors file `name` without a copy of the tensors in memory."""
        write_tensors(self._place(name), tensors)

    def adopt(self, name: str) -> None:
        """Take the part `name` that a worker has written. FileNotFoundError if it is not there."""
        (self._parts / name).rename(self._path / name)
        self._names.add(name)

    def _place(self, name: str) -> Path:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._names.add(name)
        return path

    def publish(self, facts: Mapping[str, Any], *, preferred: bool = True) -> Path:
        """Seal the checkpoint with `facts` and make it the latest; one that is not `preferred` only if there is no other.

        OSError if it cannot be written: the one that was the latest then still is.
        """
        remove(self._parts)
        files = {}
        for name in sorted(self._names):
            with (self._path / name).open("rb") as file:
                files[name] = {"bytes": os.fstat(file.fileno()).st_size, "xxh3_128": digest(file)}
        manifest = {"step": self.step, "layout": LAYOUT, **facts, "files": files}
        write_file(self._path / MANIFEST, json.dumps(manifest, indent=2).encode())
        for directory in {path.parent for path in self._path.rglob("*")}:
            fsync_directory(directory)
        final = self._root / step_directory(self.step)
        remove(final)
        self._path.rename(final)
        fsync_directory(self._root)
        if preferred or not (self._root / LATEST).exists():
            name_latest(final)
        return final

    def discard(self) -> None:
        """Delete the files written: there will be no such checkpoint."""
        remove(self._parts)
        delete(self._path)


def write_file(path: Path, content: bytes) -> None:
    """Write and fsync one file of an unfinished checkpoint, into a directory that is there."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sweep(train_dir: Path) -> None:
    """Delete the unfinished files of killed writers, by psnode's names for them. Only for the process that holds the lock."""
    for path in (train_dir / CHECKPOINTS).glob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            delete(path)
