"""Models of every kind of docs/models.md with two workers, coded both ways, over a slow downlink.

Forward passes that begin before their weights are there end with the same weights, bit for bit, as those that wait for all.
Replicas are compared in one step, whose forward pass waits for all weights; in the others uses wait, and are counted. The models
stand side by side in one job; their layers travel one by one, so that each of them is used before what follows it has come.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode import checkpoint
from tests.kinds.table import SUPPORTED, WAITS

pytestmark = pytest.mark.serial
TASK = Path(__file__).resolve().parents[1] / "kinds" / "task.py"
STEPS = 6


def trained(mpirun: Any, folder: Path, options: dict[str, object], *flags: object) -> tuple[dict[str, Any], str]:
    """The final weights, and what was said on the way."""
    coded = ["--scheme", "topk:ratio=0.25", "--downlink", "topk:ratio=0.25", "--min-compress-bytes", 0, "--lr", 0.1]
    common = ["--group-by", "layer", "--batch-size", 16, "--threads", 1, "--no-tensorboard", "--eval-freq", 0, "--hash-every", 3]
    own = [word for key, value in options.items() for word in ("--task-option", f"{key}={value}")]
    task = ["--task", f"{TASK}:Many", *own, "--max-steps", STEPS, "--train-dir", folder]
    done = mpirun(3, ["-m", "psnode", "train", *common, *coded, *task, *flags], timeout=300)
    assert done.code == 0, done
    newest = checkpoint.latest(folder)
    assert newest is not None and json.loads((folder / "summary.json").read_bytes())["steps"] == STEPS
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL), done.err


def differences(mpirun: Any, folder: Path, options: dict[str, object], *, waits: bool) -> list[str]:
    """The tensors that a run with overlap leaves otherwise than one without."""
    uses = folder / "uses"
    uses.mkdir()
    found, err = trained(mpirun, folder / "early", {**options, "slow": 0.001, "uses": uses})
    assert len(list(uses.iterdir())) == (0 if waits else 2), "both workers have used weights that were missing, or none has"
    assert ("without overlap: forward passes wait for all weights, since " in err) == waits, err
    expected, _ = trained(mpirun, folder / "waiting", options, "--no-overlap")
    assert expected.keys() == found.keys()
    return [name for name, value in expected.items() if not value.equal(found[name])]


@pytest.mark.parametrize("verdict", [SUPPORTED, WAITS])
def test_all_kinds_of_models_train_as_without_overlap(verdict: str, mpirun: Any, tmp_path: Path) -> None:
    assert differences(mpirun, tmp_path, {"verdict": verdict}, waits=verdict == WAITS) == []


@pytest.mark.parametrize(("seed", "verdict"), [(1, SUPPORTED), (2, SUPPORTED), (3, WAITS)])
def test_models_drawn_at_random_train_as_without_overlap(seed: int, verdict: str, mpirun: Any, tmp_path: Path) -> None:
    assert differences(mpirun, tmp_path, {"seed": seed, "verdict": verdict}, waits=verdict == WAITS) == []
