"""The branch of a run: its checkpoints that led to the newest one.

A run that is resumed from an older checkpoint leaves the newer ones behind, until it writes those of the same steps again. A
manifest says which start of the job wrote it (`begun`) and after which step that start began (`since`): from the newest one
backwards this names the branch, step by step of the past. Evaluations belong to it by the digest
of the weights that they are of.
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
    """The checkpoints up to the one that `latest` names, without those of branches that were left; oldest first.

    Each with the digest of its model file, None where its manifest cannot be read: such a one is passed on for its reader to
    find out, and so are those of earlier versions, which do not say who wrote them.
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
    """Yield the records in `file` that are of the branch: of no later step than its newest, nor of weights or steps left behind.

    `found`: the branch, where it is known. A checkpoint that retention has deleted tells nothing against its record, and a record
    that does not name the weights counts for its step. CheckpointError if the file is damaged.
    """
    found = branch(train_dir) if found is None else found
    models = {checkpoint.step_of(path): model for path, model in found.items()}
    left = {checkpoint.step_of(path) for path in checkpoint.complete(train_dir)} - models.keys()
    newest = max(models, default=math.inf)
    for record in read_records(train_dir / file):
        of_it = record.get("model") is None or models.get(record["step"]) in (None, record["model"])
        if of_it and record["step"] <= newest and record["step"] not in left:
            yield record
