"""History of the gradients applied to the weights in each update, and the invariants of the history.

With `--record-history` the master writes history.jsonl: one line when it starts, and one line for every version of the weights
that it finishes.

    {"step": 40, "hash": "...", "parameters": ["fc.weight", ...]}   a start from version 40 of the weights, which have this hash
    {"step": 41, "hash": "...", "groups": [[[1, 41, 40], [2, 41, 40]], ...]}
                                                                   [rank, step, version computed on] of each group's gradients

After a start, earlier lines of later versions are invalid, since their weights were lost when the earlier process ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from psnode.config.plain_json import to_json
from psnode.records import checkpoint
from psnode.records.journal import Journal
from psnode.records.metrics import read_records
from psnode.tasks.model_tensors import bits
from psnode.tasks.tensor_names import plain

HISTORY = "history.jsonl"


class AddedGradient(NamedTuple):
    """A gradient that was added to an update: its rank, its step, and the version of the weights on which it was computed."""

    rank: int
    step: int
    based: int


class History:
    """Writer of a run's history.jsonl.

    The argument `digest` of its methods is the xxh3_128 of the tensors `parameters`, in this order, as in summary.json.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / HISTORY
        self._journal: Journal | None = None

    def start(self, version: int, digest: str, parameters: Sequence[str]) -> None:
        """Record that the job continues from `version`."""
        self._journal = self._journal or Journal(self._path)
        self._write({"step": version, "hash": digest, "parameters": parameters})

    def version(self, version: int, digest: str, groups: Sequence[Sequence[AddedGradient]]) -> None:
        """Record that `version` is finished; `groups[g]` are the gradients added to group g."""
        self._write({"step": version, "hash": digest, "groups": groups})

    def close(self) -> None:
        """Flush all lines to disk."""
        if self._journal is not None:
            self._journal.close()

    def _write(self, line: dict[str, Any]) -> None:
        assert self._journal is not None
        self._journal.append(to_json(line, separators=(",", ":")).encode())


def violations(directory: Path, staleness: int | None = 0) -> list[str]:
    """Return the violations of the invariants in the history of the run in `directory`, one text each:

    * versions rise by one, and a start continues from the exact weights of its version;
    * every (worker, step, group) is in at most one update, and a worker's steps rise;
    * every gradient was computed on the version to which it was applied, or on a version at most `staleness` versions older
      (None: on any version);
    * every published checkpoint holds the weights of its version.
    """
    found: list[str] = []
    kept: list[dict[str, Any]] = []
    parameters: list[str] = []
    for line in read_records(directory / HISTORY):
        if "parameters" in line:
            parameters = line["parameters"]
            del kept[line["step"] :]
            known = kept[-1]["hash"] if kept else line["hash"]
            if len(kept) != line["step"] or known != line["hash"]:
                found.append(f"the start from version {line['step']} does not continue the recorded weights")
        elif line["step"] != len(kept) + 1:
            found.append(f"version {line['step']} follows version {len(kept)}")
        else:
            kept.append(line)
    if not kept:
        found.append("nothing was applied")
    return [*found, *_of_gradients(kept, staleness), *_of_checkpoints(directory, parameters, [line["hash"] for line in kept])]


def _of_gradients(lines: Iterable[dict[str, Any]], staleness: int | None) -> list[str]:
    found = []
    newest: dict[tuple[int, int], int] = {}
    for line in lines:
        applied_to = line["step"] - 1
        for group, entries in enumerate(line["groups"]):
            for rank, step, based in entries:
                what = f"version {line['step']}, group {group}: step {step} of rank {rank}"
                if step <= newest.get((rank, group), 0):
                    found.append(f"{what} comes after step {newest[rank, group]}")
                newest[rank, group] = step
                if not 0 <= applied_to - based <= (applied_to if staleness is None else staleness):
                    found.append(f"{what} was computed on version {based}")
    return found


def _of_checkpoints(directory: Path, parameters: Sequence[str], hashes: Sequence[str]) -> list[str]:
    found = []
    for path in checkpoint.complete(directory):
        opened = checkpoint.Checkpoint.open(path)
        if 0 < opened.step <= len(hashes) and _hash(opened, parameters) != hashes[opened.step - 1]:
            found.append(f"the checkpoint of step {opened.step} does not hold the weights of that version")
        if opened.step > len(hashes):
            found.append(f"the checkpoint of step {opened.step} is of a version that never was")
    return found


def _hash(opened: checkpoint.Checkpoint, parameters: Sequence[str]) -> str:
    state, tensors = xxhash.xxh3_128(), opened.tensors(checkpoint.MODEL)
    for name in parameters:
        state.update(bits(tensors[name] if name in tensors else tensors[plain(name)]))
    return state.hexdigest()
