"""Retention of checkpoints: an unsound one takes no sound one's place.

A manifest says whether its checkpoint is sound: `"sound": true`, false with the reason in `unsound`, or null as long as the
losses on its weights have not come. One without a word, of an earlier version of psnode, counts as sound. `latest`, which
--resume goes by, names the newest that is not known to be unsound, if there is one.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from psnode.config.plain_json import to_json
from psnode.errors import CheckpointError
from psnode.protocol.messages import plain
from psnode.records import checkpoint
from psnode.records.branches import branch, evaluations
from psnode.records.checkpoint import SOUND, Checkpoint
from psnode.records.metrics import EVALUATIONS, write_atomically

REASON = "unsound"
_FIGURES = ("top1", "loss")  # of an evaluation
_SHOWN = 500  # characters of a reason
UNKNOWN: dict[str, Any] = {SOUND: None}  # as in a new manifest


def verdict(reason: str) -> dict[str, Any]:
    """Entry of the manifest of an unsound checkpoint, or of a sound one if there is no `reason`."""
    return {SOUND: False, REASON: reason} if reason else {SOUND: True}


def is_sound(path: Path) -> bool | None:
    """Soundness of a published checkpoint: none of one whose manifest cannot be read."""
    try:
        found = Checkpoint.open(path).facts.get(SOUND, True)
    except CheckpointError:
        return None
    return found if found is None else found is True


def why_unsound(path: Path) -> str:
    """The reason that the manifest of a published checkpoint gives; empty if it is not said to be unsound."""
    try:
        facts = Checkpoint.open(path).facts
    except CheckpointError as error:
        return str(error)
    if facts.get(SOUND, True) in (True, None):
        return ""
    return " ".join(plain(str(facts.get(REASON, "its manifest gives no reason"))).split())[:_SHOWN]


def judge(path: Path, reason: str) -> None:
    """Write the verdict into the manifest of a published checkpoint; `latest` names the newest one not known to be unsound.

    OSError if it cannot be written. One that is gone is passed over.
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
    """The newest checkpoint of the run's branch that is not known to be unsound."""
    readable = [path for path, model in branch(train_dir).items() if model is not None]
    return next((path for path in reversed(readable) if is_sound(path) is not False), None)


def prune(train_dir: Path, step: int, keep_last: int, workers: int = 0) -> None:
    """Delete all checkpoints up to `step` but the newest `keep_last` (0: none is deleted) that are not known to be unsound.

    The newest that is known to be sound stays in any case, those of unknown soundness behind it, and the very newest; the best
    that was evaluated, and one that is being read. An older one stays that has the part of one of ranks 1 to `workers` of which
    the newest that is not unsound has none. One of a branch that was left takes no other one's place, and goes as older ones do.
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
    with contextlib.suppress(OSError):  # they are deleted next time
        for old in surpassed:
            if old not in kept and not any((old / name).exists() for name in lacking) and not _is_read(old):
                checkpoint.remove(old)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Keep a checkpoint from being deleted while inside, on this host and others, where the file system has locks.

    The directory and the weights are locked, which stay the same files when a verdict replaces the manifest.
    """
    with contextlib.ExitStack() as locks:
        for place in _locked(path):
            with contextlib.suppress(OSError):  # reading it meets that again
                descriptor = os.open(place, os.O_RDONLY | os.O_NONBLOCK)  # a pipe in its place has no writer
                locks.callback(os.close, descriptor)
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield


def _is_read(path: Path) -> bool:
    """True if somebody is `reading` it."""
    return any(_is_locked(place) for place in _locked(path))


def _is_locked(place: Path) -> bool:
    try:
        # other hosts see the locks of files alone, and want them open for writing
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
    """The checkpoint of the highest top1 that an evaluator found, or of the lowest loss where there is no accuracy, if any.

    Of the branch of the run: what came of steps that it has gone back behind does not count.
    """
    best, found = (-math.inf, -math.inf), None
    own = branch(train_dir)
    with contextlib.suppress(CheckpointError, OSError):
        for record in evaluations(train_dir, EVALUATIONS, own):
            path = train_dir / checkpoint.CHECKPOINTS / checkpoint.step_directory(record["step"])
            score = _score(record)
            if score is not None and score >= best and path in own:
                best, found = score, path
    return found


def _score(record: Mapping[str, Any]) -> tuple[float, float] | None:
    """A measure of an evaluation, higher for a better one; None if its figures are none."""
    accuracy, loss = (value if isinstance(value, float) and math.isfinite(value) else None for value in map(record.get, _FIGURES))
    if loss is None:
        return None
    return (-math.inf, -loss) if accuracy is None else (accuracy, 0.0)


def _lacking(path: Path, workers: int) -> Iterable[str]:
    """The files of ranks 1 to `workers` that a checkpoint does not have."""
    return [name for rank in range(1, workers + 1) if not (path / (name := checkpoint.worker_file(rank))).exists()]
