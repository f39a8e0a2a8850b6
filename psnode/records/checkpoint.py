"""Checkpoints: directories that are complete or absent.

    checkpoints/step-00000100/     model.safetensors           weights and buffers, named as in the state dict of
                                                               the model that is not compiled
                                   ema.safetensors             the same with moving averages of the weights, if they are kept
                                   state/optimizer.safetensors the master's optimizer
                                   state/replica.safetensors   the workers' weights, if they differ from the master's
                                   state/waiting.safetensors   gradients that have arrived but are not yet applied
                                   state/norms.safetensors     norms with which later gradients are compared
                                   worker-003.safetensors      feedback and buffers of rank 3, its place in the data
                                   manifest.json               step, layout, and size and xxh3_128 of every file
    checkpoints/latest             the name of the newest checkpoint that is not known to be unsound

psnode.records.staging writes the files, the manifest last, with the facts from psnode.master.checkpoints.contents. Later
psnode.records.retention adds to the manifest whether the checkpoint is sound. A checkpoint is renamed before it is deleted. It
contains only tensors and JSON, so reading it executes no code. psnode.records.state_names defines the names of the state's
tensors.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any

import xxhash

from psnode.config.files import delete, inside, open_plain, read_json, read_plain
from psnode.config.memory import memory
from psnode.errors import CheckpointError
from psnode.records import tensorfile
from psnode.records.metrics import write_atomically
from psnode.tasks.tensor_names import Rename, renamed, renaming

if TYPE_CHECKING:
    import torch

    from psnode.plans.groups import Plan

CHECKPOINTS = "checkpoints"
LATEST = "latest"
MARK = ".mark"  # file in the run's directory; workers recognise the directory by its contents
MANIFEST = "manifest.json"
MODEL = "model.safetensors"
EMA = "ema.safetensors"
OPTIMIZER = "state/optimizer.safetensors"
REPLICA = "state/replica.safetensors"
WAITING = "state/waiting.safetensors"
NORMS = "state/norms.safetensors"
RESIDUALS, FULL, NONE = "residuals", "full", "none"  # --checkpoint-residuals in a manifest, which omits the value full
SOUND = "sound"  # key in a manifest: see psnode.records.retention
LAYOUT = 2  # 2: state by tensor; a manifest without a layout has layout 1: state by group and segment
PLACE = "data/place"  # in a worker's file: steps taken of its share of the data, and the number of shares
_NAME = re.compile(r"step-(\d{8,})")
_CHUNK = 1 << 22
_MANIFEST_BYTES = 1 << 24
_REMEDY = f"; write the name of an older checkpoint into {CHECKPOINTS}/{LATEST} to resume from that"


def worker_file(rank: int) -> str:
    """Return the name of the file of worker `rank` within a checkpoint."""
    return f"worker-{rank:03d}.safetensors"


def is_worker_file(name: str) -> bool:
    """Return True if `name` is the name of a worker's file."""
    return name.startswith("worker-")


def step_directory(step: int) -> str:
    """Return the name of the checkpoint of `step`."""
    return f"step-{step:08d}"


def name_latest(path: Path) -> None:
    """Make `latest` name the published checkpoint `path`, from which --resume continues."""
    write_atomically(path.with_name(LATEST), path.name.encode() + b"\n")


def remove(path: Path) -> None:
    """Delete the directory `path` if it exists. It is renamed first, so that no process finds half a directory of this name."""
    gone = path.with_name(f".{path.name.lstrip('.')}.gone")
    delete(gone)
    try:
        path.rename(gone)
    except FileNotFoundError:
        return
    delete(gone)


def step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint's directory. Raises CheckpointError for any other name."""
    match = _NAME.fullmatch(path.name)
    if match is None:
        raise CheckpointError(f"{path} is not a checkpoint: its name must be like {step_directory(100)}")
    return int(match[1])


def complete(train_dir: Path) -> list[Path]:
    """Return the directories of the published checkpoints, in ascending order of their steps."""
    root = train_dir / CHECKPOINTS
    try:
        names = os.listdir(root)
    except OSError:  # there are no checkpoints yet, or the directory was removed
        return []
    found = [(int(match[1]), root / name) for name in names if (match := _NAME.fullmatch(name))]
    return [path for _, path in sorted(found) if not path.is_symlink() and (path / MANIFEST).is_file()]


def latest(train_dir: Path) -> Path | None:
    """Return the checkpoint to resume from; None if there is no checkpoint.

    This is the directory that `latest` names. Without that file, it is the newest checkpoint not known to be unsound. Raises
    CheckpointError if `latest` cannot be read or does not hold the name of a checkpoint.
    """
    pointer = train_dir / CHECKPOINTS / LATEST
    try:
        name = read_plain(pointer, _CHUNK).decode("ascii", errors="replace").strip()
    except FileNotFoundError:
        return _newest(complete(train_dir))
    except OSError as error:
        raise CheckpointError(f"{pointer} cannot be read: {error.strerror}") from error
    if not _NAME.fullmatch(name):
        known = ", ".join(path.name for path in complete(train_dir)[-3:]) or "none"
        raise CheckpointError(
            f"{pointer} holds {name[:40]!r}, not the name of a checkpoint: write one into it (existing: {known})"
        )
    return pointer.parent / name


def _newest(published: list[Path]) -> Path | None:
    """Return the newest readable checkpoint that is not known to be unsound, or otherwise the newest of all checkpoints."""
    for path in reversed(published):
        with contextlib.suppress(CheckpointError):
            if Checkpoint.open(path).facts.get(SOUND) is not False:
                return path
    return published[-1] if published else None


@dataclass(frozen=True)
class Checkpoint:
    """A published checkpoint, whose files are verified as they are read.

    `facts` is the manifest. `plan` is the plan with which a checkpoint of layout 1 was written.
    """

    path: Path
    step: int
    facts: dict[str, Any]
    plan: Plan | None = None

    @classmethod
    def open(cls, path: Path, plan: Plan | None = None) -> Checkpoint:
        """Open a checkpoint.

        Raises CheckpointError if the manifest is missing, is damaged, belongs to another step, or has an unknown layout.
        """
        try:
            if path.is_symlink():
                raise ValueError("the directory is a link: copy the checkpoint to that place")
            facts = read_json(path / MANIFEST, _MANIFEST_BYTES)
            for name, entry in facts["files"].items():
                if not inside(name):
                    raise ValueError(f"files names {name[:60]!r}, which is not a plain path inside the checkpoint")
                if not (type(entry["bytes"]) is int and entry["bytes"] >= 0 and isinstance(entry["xxh3_128"], str)):
                    raise TypeError(f"an entry of files is {str(entry)[:60]}")
            step = facts["step"]
            if type(step) is not int or (_NAME.fullmatch(path.name) and step != step_of(path)):
                raise ValueError(f"it is that of step {str(step)[:20]}, not of this directory")
            layout = facts.get("layout", 1)
            if type(layout) is not int or layout < 1:
                raise ValueError(f"its layout is {str(layout)[:20]}")
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise CheckpointError(f"checkpoint {path} is incomplete or damaged: {MANIFEST}: {problem}{_REMEDY}") from error
        if layout > LAYOUT:
            raise CheckpointError(
                f"checkpoint {path} has layout {layout}, this version of psnode reads layouts up to {LAYOUT}: "
                "use the version that wrote it, or a newer one"
            )
        return cls(path, step, facts, plan)

    @property
    def layout(self) -> int:
        """Return the number of the layout, which defines the names of the checkpoint's state (psnode.records.state_names)."""
        return int(self.facts.get("layout", 1))

    def verify(self) -> None:
        """Read every file once. Raises CheckpointError if a file is missing, truncated or altered."""
        for name in self.facts["files"]:
            self._checked(name, digest)

    def read(self, name: str) -> bytes:
        """Return the bytes of a file. Raises CheckpointError if the file is missing, truncated or altered."""
        content = b""

        def read(file: IO[bytes]) -> str:
            nonlocal content
            content = file.read(self.facts["files"][name]["bytes"])
            return xxhash.xxh3_128_hexdigest(content)

        self._checked(name, read)
        return content

    def _checked(self, name: str, digest_of: Callable[[IO[bytes]], str]) -> None:
        """Compare the size and then the digest of file `name` with the manifest. Raises CheckpointError if they differ."""
        entry = self.facts["files"].get(name)
        try:
            if any((self.path / parent).is_symlink() for parent in PurePosixPath(name).parents):
                raise OSError(errno.ELOOP, "its directory is a link", name)
            with open_plain(self.path / name) as file:
                size = os.fstat(file.fileno()).st_size
                if entry is not None and size == entry["bytes"] > memory():  # a sparse file of this size takes no disk space
                    raise OSError(errno.EFBIG, "it is larger than the memory of this machine", name)
                digest = digest_of(file) if entry is not None and size == entry["bytes"] else ""
        except OSError as error:
            raise CheckpointError(f"checkpoint {self.path} lacks {name}: {error.strerror}{_REMEDY}") from error
        if entry is None or size != entry["bytes"]:
            expected = "no entry" if entry is None else f"{entry['bytes']} bytes"
            raise CheckpointError(f"{self.path / name} has {size} bytes, its manifest has {expected}{_REMEDY}")
        if digest != entry["xxh3_128"]:
            raise CheckpointError(f"{self.path / name} was altered: its hash differs from the manifest's{_REMEDY}")

    def tensors(self, name: str) -> dict[str, torch.Tensor]:
        """Return the tensors of a safetensors file of the checkpoint, by plain name (psnode.tasks.tensor_names)."""
        return renamed(tensorfile.parse(self.read(name), str(self.path / name)), self.renaming)

    @cached_property
    def renaming(self) -> Rename:
        """The function that maps names of a compiled model to plain names. Files of earlier versions contain such names."""
        return renaming(tensorfile.names(self.path / MODEL))

    def has(self, name: str) -> bool:
        """Return True if the manifest lists file `name`."""
        return name in self.facts["files"]


def digest(file: IO[bytes]) -> str:
    """Return the xxh3_128 of the rest of a file, in hexadecimal, as the manifest holds it."""
    found = xxhash.xxh3_128()
    while chunk := file.read(_CHUNK):
        found.update(chunk)
    return found.hexdigest()
