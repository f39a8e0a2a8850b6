"""Retention of checkpoints: an unsound checkpoint never displaces a sound one.

A manifest records the soundness of its checkpoint in the entry `sound`: true; or false, with the reason in `unsound`; or null
until the losses computed on its weights have arrived. A manifest of an earlier version of psnode lacks this entry; its
checkpoint counts as sound. `latest`, which --resume follows, names the newest checkpoint that is not known to be unsound, if
any. A checkpoint that was made only because a worker of a session had evaluated its version is named only if there is no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.plans.roles import Layout
from psnode.protocol.messages import plain
from psnode.records import checkpoint
from psnode.records.branches import branch, evaluations
from psnode.records.checkpoint import SOUND, Checkpoint
from psnode.records.evaluations import score
from psnode.records.metrics import EVALUATIONS, write_atomically

REASON = "unsound"
_SHOWN = 500  # maximum characters of a reason in messages
UNKNOWN: dict[str, Any] = {SOUND: None}  # entry of a new manifest


def verdict(reason: str) -> dict[str, Any]:
    """Return the manifest's entry for an unsound checkpoint, or for a sound checkpoint if `reason` is empty."""
    return {SOUND: False, REASON: reason} if reason else {SOUND: True}


def is_sound(path: Path) -> bool | None:
    """Return the soundness of a published checkpoint; None if it is unknown or the manifest cannot be read."""
    try:
        found = Checkpoint.open(path).facts.get(SOUND, True)
    except CheckpointError:
        return None
    return found if found is None else found is True


def why_unsound(path: Path) -> str:
    """Return the reason why a published checkpoint is unsound, or the error if its manifest cannot be read.

    The result is empty if the checkpoint is not marked as unsound.
    """
    try:
        facts = Checkpoint.open(path).facts
    except CheckpointError as error:
        return str(error)
    if facts.get(SOUND, True) in (True, None):
        return ""
    return " ".join(plain(str(facts.get(REASON, "its manifest gives no reason"))).split())[:_SHOWN]


def judge(path: Path, reason: str) -> None:
    """Record in the manifest of the checkpoint `path` that it is unsound for `reason`, or that it is sound if `reason` is empty.

    Afterwards `latest` names the newest checkpoint not known to be unsound. A checkpoint that no longer exists is skipped.
    Raises OSError if a file cannot be written.
    """
    train_dir, manifest = path.parents[1], path / checkpoint.MANIFEST
    if not manifest.is_file():
        return
    facts = {name: value for name, value in Checkpoint.open(path).facts.items() if name not in (SOUND, REASON)}
    files = facts.pop("files")
    write_atomically(manifest, to_json({**facts, **verdict(reason), "files": files}, indent=2).encode())
    named = checkpoint.latest(train_dir)
    if reason and named == path and (before := newest_not_unsound(train_dir)) is not None:
        checkpoint.name_latest(before)
    elif not reason and (named is None or checkpoint.step_of(named) < checkpoint.step_of(path)):
        checkpoint.name_latest(path)


def newest_not_unsound(train_dir: Path) -> Path | None:
    """Return the newest checkpoint of the run's branch that is not known to be unsound."""
    readable = [path for path, model in branch(train_dir).items() if model is not None]
    return next((path for path in reversed(readable) if is_sound(path) is not False), None)


def prune(train_dir: Path, step: int, keep_last: int, workers: int = 0) -> None:
    """Delete old checkpoints up to `step`. Those not known to be unsound are kept if they are among the `keep_last` newest.

    If `keep_last` is 0, nothing is deleted. These are never deleted: the newest checkpoint, the newest checkpoint known to be
    sound, newer checkpoints of unknown soundness, the best evaluated checkpoint, and a checkpoint that is being read. A
    checkpoint also stays if it has the part of a worker (ranks 1 to `workers`) that is missing from the newest checkpoint not
    known to be unsound. Checkpoints of abandoned branches do not count among the newest, and are deleted like old checkpoints.
    """
    if not keep_last:
        return
    found = {path: is_sound(path) for path in checkpoint.complete(train_dir) if checkpoint.step_of(path) <= step}
    own = branch(train_dir)
    candidates = [path for path, sound in found.items() if sound is not False and path in own]
    certain = [path for path, sound in found.items() if sound and path in own]
    kept = {*candidates[-keep_last:], *certain[-1:], *list(found)[-1:], best_evaluated(train_dir)}
    lacking = _lacking(candidates[-1], workers) if candidates else ()
    last = checkpoint.step_of(certain[-1]) if certain else 0
    surpassed = [path for path, sound in found.items() if sound is False or checkpoint.step_of(path) < last]
    with contextlib.suppress(OSError):  # the next call deletes the rest
        for old in surpassed:
            if old not in kept and not any((old / name).exists() for name in lacking) and not _is_read(old):
                checkpoint.remove(old)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Protect a checkpoint from deletion inside the context, on this host and others, if the file system has locks.

    The directory, the weights and the manifest are locked. If a verdict replaces the manifest meanwhile, the locks of the
    directory and of the weights remain.
    """
    with contextlib.ExitStack() as locks:
        for place in _locked(path):
            with contextlib.suppress(OSError):  # the reader of the checkpoint will get the same error
                descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # do not wait if the path is a pipe without a writer
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def _is_read(path: Path) -> bool:
    """Return True if a process is `reading` the checkpoint."""
    return any(_is_locked(place) for place in _locked(path))


def _is_locked(place: Path) -> bool:
    try:
        # other hosts see only the locks of files, and locking them requires write access
        descriptor = os.open(place, os.O_NONBLOCK | (os.O_RDONLY if place.is_dir() else os.O_RDWR))
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _locked(path: Path) -> tuple[Path, ...]:
    return path, path / checkpoint.MODEL, path / checkpoint.MANIFEST


def best_evaluated(train_dir: Path) -> Path | None:
    """Return the checkpoint with the highest evaluated top-1 accuracy; None if no checkpoint has been evaluated.

    If no evaluation has an accuracy, the lowest loss decides. Only checkpoints on the run's branch count.
    """
    found = best_evaluation(train_dir)
    return None if found is None else found[0]


def best_evaluation(train_dir: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the checkpoint of `best_evaluated` and the record of its evaluation; None if no checkpoint has been evaluated."""
    best, found = (-math.inf, -math.inf), None
    own = branch(train_dir)
    with contextlib.suppress(CheckpointError, OSError):
        for record in evaluations(train_dir, EVALUATIONS, own):
            path = train_dir / checkpoint.CHECKPOINTS / checkpoint.step_directory(record["step"])
            mark = score(record)
            if mark is not None and mark >= best and path in own:
                best, found = mark, (path, record)
    return found


def _lacking(path: Path, workers: int) -> Iterable[str]:
    """Return the names of the files of workers 1 to `workers` that a checkpoint lacks."""
    return [name for rank in Layout(workers).computing if not (path / (name := checkpoint.worker_file(rank))).exists()]
