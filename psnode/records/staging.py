"""Unfinished checkpoints: parts written by workers, files written by the master, and their publication.

A checkpoint is written into a directory whose name starts with a dot. Every file and the directory are flushed by fsync, the
directory is renamed, and only then `latest` is replaced.

Workers write their parts to a separate directory for the checkpoint's step and this start of the job. The master moves the parts
out of that directory and deletes it before the checkpoint is published. The manifest thus lists only the files that were moved,
and workers never learn a path of the checkpoint.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.config.files import delete
from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.records.checkpoint import (
    CHECKPOINTS,
    LATEST,
    LAYOUT,
    MANIFEST,
    name_latest,
    remove,
    step_directory,
    worker_file,
)
from psnode.records.hashed_file import FileEntry, HashedFile
from psnode.records.metrics import fsync_directory
from psnode.records.tensorfile import Content, content_of, write_content

if TYPE_CHECKING:
    import torch

    from psnode.records.tensorfile import Read

_BYTES, _DIGEST, _ERROR = "file/bytes", "file/xxh3_128", "file/errno"
_UNFINISHED = re.compile(r"\.step-\d{8,}(\.[0-9a-f]{16})?(\.gone)?|\.latest\.\d+")


def _parts_path(train_dir: Path, step: int, job: int) -> Path:
    """Return the directory into which a job's workers write their parts of the checkpoint of `step`.

    `job`: the job's id, which its network frames carry.
    """
    return train_dir / CHECKPOINTS / f".{step_directory(step)}.{job:016x}"


def write_part(train_dir: Path, step: int, job: int, rank: int, content: Content, read: Read | None = None) -> FileEntry:
    """Write and fsync a worker's part of an unfinished checkpoint. The part gets its final name when it is complete.

    `read`: see psnode.records.tensorfile.write_content. Raises FileNotFoundError if the master no longer waits for the
    checkpoint or if its directory was removed, and OSError if the disk does not take the data.
    """
    place = _parts_path(train_dir, step, job)
    unfinished = place / f".{worker_file(rank)}"
    written = write_content(unfinished, content, read)
    unfinished.rename(place / worker_file(rank))
    return written.entry


def tell(found: FileEntry | OSError) -> dict[str, torch.Tensor]:
    """Return the tensors of the message that describes a written part, or the error that prevented the writing."""
    import torch

    if isinstance(found, OSError):
        return {_ERROR: torch.tensor([found.errno or 0])}
    return {_BYTES: torch.tensor([found.nbytes]), _DIGEST: torch.tensor(list(bytes.fromhex(found.digest)), dtype=torch.uint8)}


def told(tensors: Mapping[str, torch.Tensor], rank: int) -> FileEntry | OSError:
    """Return the entry or error in a message of `rank` made by `tell`. Raises CheckpointError if the message is invalid."""
    try:
        if _ERROR in tensors:
            number = int(tensors[_ERROR].item())
            return OSError(number, f"rank {rank}: {os.strerror(number)}")
        return FileEntry(int(tensors[_BYTES].item()), bytes(tensors[_DIGEST].tolist()).hex())
    except (KeyError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"the part of rank {rank} is not described: {error}") from error


class StagedCheckpoint:
    """An unfinished checkpoint of `step`, invisible to readers until `publish`.

    The checkpoint holds the files that were added or adopted. Only parts from workers of `job` may be adopted. Only one
    thread at a time may add files. If another process removes the directory, it is not created again. Calls then raise
    FileNotFoundError, and the checkpoint must be abandoned.
    """

    def __init__(self, train_dir: Path, step: int, job: int = 0) -> None:
        self.step = step
        self._train_dir = train_dir
        self._root = train_dir / CHECKPOINTS
        self._path = self._root / f".{step_directory(step)}"
        self._parts = _parts_path(train_dir, step, job)
        self._entries: dict[str, FileEntry] = {}
        for path in (self._path, self._parts):
            delete(path)
            path.mkdir(parents=True)

    def add(self, name: str, content: bytes) -> None:
        """Write `content` to the file `name`, a path relative to the checkpoint."""
        self._entries[name] = write_file(self._place(name), content)

    def add_tensors(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Write the safetensors file `name` without copying the tensors in memory."""
        self.add_content(name, content_of(tensors))

    def add_content(
        self, name: str, content: Content, read: Read | None = None, checked: Callable[[str], bool] | None = None
    ) -> str | None:
        """Write the safetensors file `name` as `tensorfile.write_content` does.

        Returns the name of the first tensor that satisfies `checked` and has a value that is not finite, or None.
        """
        self._entries[name], wrecked = write_content(self._place(name), content, read, checked)
        return wrecked

    def adopt(self, name: str, entry: FileEntry) -> None:
        """Move the part `name`, which a worker has written and described as `entry`, into the checkpoint.

        Raises FileNotFoundError if the file is missing or does not have the described size.
        """
        found = (self._parts / name).lstat()
        if not stat.S_ISREG(found.st_mode) or found.st_size != entry.nbytes:
            raise FileNotFoundError(f"{name} does not have the reported size")
        (self._parts / name).rename(self._path / name)
        self._entries[name] = entry

    def is_there(self) -> bool:
        """Return True unless the checkpoint's directory has been removed."""
        return self._path.is_dir()

    def _place(self, name: str) -> Path:
        path = self._path / name
        for parent in reversed(path.relative_to(self._path).parents[:-1]):
            (self._path / parent).mkdir(exist_ok=True)
        return path

    def _require_whole(self, place: Path) -> None:
        """Raise FileNotFoundError unless the directory `place` has all files of the checkpoint, in full length."""
        for name, entry in self._entries.items():
            found = (place / name).lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_size != entry.nbytes:
                raise FileNotFoundError(errno.ENOENT, f"{name} is not as it was written", str(place / name))

    def publish(self, facts: Mapping[str, Any], *, preferred: bool = True) -> Path:
        """Write the manifest with `facts`, publish the checkpoint and return its path.

        Afterwards the file `latest` names this checkpoint; if `preferred` is False, only a missing `latest` is written.
        Raises OSError if a file cannot be written or has been removed; in this case `latest` is unchanged.
        """
        remove(self._parts)
        files = {name: {"bytes": entry.nbytes, "xxh3_128": entry.digest} for name, entry in sorted(self._entries.items())}
        manifest = {"step": self.step, "layout": LAYOUT, **facts, "files": files}
        write_file(self._path / MANIFEST, to_json(manifest, indent=2).encode())
        for directory in {path.parent for path in self._path.rglob("*")}:
            fsync_directory(directory)
        final = self._root / step_directory(self.step)
        remove(final)
        self._path.rename(final)
        for directory in (self._root, self._train_dir):
            fsync_directory(directory)
        try:
            self._require_whole(final)
        except OSError:
            remove(final)
            raise
        if preferred or not (self._root / LATEST).exists():
            name_latest(final)
        return final

    def discard(self) -> None:
        """Delete the written files and abandon the checkpoint."""
        remove(self._parts)
        delete(self._path)


def write_file(path: Path, content: bytes) -> FileEntry:
    """Write and fsync one file of an unfinished checkpoint, in an existing directory."""
    with HashedFile(path, len(content)) as file:
        file.write(content)
    return file.entry


def sweep(train_dir: Path) -> None:
    """Delete the unfinished checkpoints of killed writers, which are recognised by their names.

    Only the process that holds the run's lock may call this.
    """
    for path in (train_dir / CHECKPOINTS).glob(".*"):
        if _UNFINISHED.fullmatch(path.name):
            delete(path)
