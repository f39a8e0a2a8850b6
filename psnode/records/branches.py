"""The branch of a run: the checkpoints that led to the newest one.

A run that is resumed from an older checkpoint abandons the newer ones, until it writes those of the same steps again. A manifest
records which start of the job wrote it (`begun`) and after which step that start began (`since`): followed from the newest one
backwards, these entries define the branch. An evaluation belongs to the branch if the digest of its weights does.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from psnode.errors import CheckpointError
from psnode.records import checkpoint
from psnode.records.metrics import read_records

BEGUN = "begun"
SINCE = "since"


def branch(train_dir: Path) -> dict[Path, str | None]:
    """Return the checkpoints up to the one that `latest` names, without those of abandoned branches; oldest first.

    Each comes with the digest of its model file, which is None if its manifest cannot be read: its reader reports that.
    Checkpoints of earlier versions, which do not record who wrote them, are included.
    """
    try:
        newest = checkpoint.latest(train_dir)
    except CheckpointError:
        newest = None
    found: dict[Path, str | None] = {}
    begun, since = "", float("inf")
    for path in reversed(checkpoint.complete(train_dir)):
        step = checkpoint.step_of(path)
        if newest is not None and step > checkpoint.step_of(newest):
            continue
        try:
            facts = checkpoint.Checkpoint.open(path).facts
        except CheckpointError:
            found[path] = None
            continue
        writer, first = facts.get(BEGUN), facts.get(SINCE)
        if isinstance(writer, str) and type(first) is int:
            if writer != begun and step > since:
                continue
            begun, since = writer, first
        found[path] = facts["files"].get(checkpoint.MODEL, {}).get("xxh3_128")
    return dict(reversed(found.items()))


def evaluations(train_dir: Path, file: str, found: Mapping[Path, str | None] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the records in `file` that belong to the branch: not of a later step than its newest, nor of abandoned weights or
    steps.

    `found`: the branch, if it is known. A checkpoint that retention has deleted does not invalidate its record, and a record that
    does not name the weights counts for its step. Raises CheckpointError if the file is damaged.
    """
    found = branch(train_dir) if found is None else found
    models = {checkpoint.step_of(path): model for path, model in found.items()}
    left = {checkpoint.step_of(path) for path in checkpoint.complete(train_dir)} - models.keys()
    newest = max(models, default=math.inf)
    for record in read_records(train_dir / file):
        of_it = record.get("model") is None or models.get(record["step"]) in (None, record["model"])
        if of_it and record["step"] <= newest and record["step"] not in left:
            yield record
