"""The branch of a run: the checkpoints that led to the newest checkpoint.

A run that is resumed from an older checkpoint abandons the newer checkpoints, and overwrites them when it reaches their steps.
Every manifest records the start of the job that wrote it (`begun`) and the step after which this start continued (`since`). The
branch is found by following these entries backwards from the newest checkpoint. An evaluation belongs to the branch if it names
the digest of weights on the branch.
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
    """Return the run's checkpoints, oldest first, up to the checkpoint named by `latest` and without abandoned branches.

    Each path maps to the digest of the checkpoint's model file, or to None if the manifest cannot be read. An unreadable
    manifest is reported when the checkpoint is opened. Checkpoints of earlier versions of psnode, which do not record the
    start, are included.
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
    """Yield the evaluations in `file` that belong to the run's branch.

    Evaluations of later steps or of abandoned weights are left out. `found` is the branch, if the caller already has it. An
    evaluation stays valid after retention has deleted its checkpoint. If a record does not name its weights, only its step
    decides. Raises CheckpointError if the file is damaged.
    """
    found = branch(train_dir) if found is None else found
    models = {checkpoint.step_of(path): model for path, model in found.items()}
    left = {checkpoint.step_of(path) for path in checkpoint.complete(train_dir)} - models.keys()
    newest = max(models, default=math.inf)
    for record in read_records(train_dir / file):
        of_it = record.get("model") is None or models.get(record["step"]) in (None, record["model"])
        if of_it and record["step"] <= newest and record["step"] not in left:
            yield record
