"""Models of every kind in docs/models.md, coded in both directions, over a slow downlink.

Forward passes that begin before their weights have arrived must give the same weights bit for bit as passes that wait for all.
Replicas are compared in one step, whose forward pass waits for all weights; in the other steps each use waits, and waits are
counted. The models run side by side in one job; their layers travel one by one, so that each is used before the next one has
arrived.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode import cli
from psnode.records import checkpoint
from tests.kinds.table import SUPPORTED, WAITS

pytestmark = [
    pytest.mark.serial,
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning", "ignore::UserWarning"),
]
TASK = Path(__file__).resolve().parents[1] / "kinds" / "task.py"
STEPS = 6


def command(folder: Path, options: dict[str, object], group_by: str = "layer") -> list[object]:
    """Return the arguments of psnode for a run into `folder`."""
    coded = ["--scheme", "topk:ratio=0.25", "--downlink", "topk:ratio=0.25", "--min-compress-bytes", 0, "--lr", 0.1]
    common = ["--group-by", group_by, "--batch-size", 16, "--threads", 1, "--no-tensorboard", "--eval-freq", 0, "--hash-every", 3]
    own = [word for key, value in options.items() for word in ("--task-option", f"{key}={value}")]
    return ["train", *common, *coded, "--task", f"{TASK}:Many", *own, "--max-steps", STEPS, "--train-dir", folder]


def final_weights(folder: Path) -> dict[str, Any]:
    """Return the weights after the last step."""
    newest = checkpoint.latest(folder)
    assert newest is not None and json.loads((folder / "summary.json").read_bytes())["steps"] == STEPS
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def differences(
    mpirun: Any, folder: Path, options: dict[str, object], group_by: str = "layer", *, waits: bool, workers: int = 2
) -> list[str]:
    """Return the tensors in which a run with overlap differs from a run without, which one process makes over the loopback."""
    uses = folder / "uses"
    uses.mkdir()
    early = command(folder / "early", {**options, "slow": 0.001, "uses": uses}, group_by)
    done = mpirun(1 + workers, ["-m", "psnode", *early], timeout=300)
    assert done.code == 0, done
    assert len(list(uses.iterdir())) == (0 if waits else workers), "all have used weights that were missing, or none"
    assert ("without overlap: forward passes wait for all weights, since " in done.err) == waits, done.err
    waiting = [*command(folder / "waiting", options, group_by), "--no-overlap", "--local", workers]
    assert cli.main([str(word) for word in waiting]) == 0
    found, expected = final_weights(folder / "early"), final_weights(folder / "waiting")
    assert expected.keys() == found.keys()
    return [name for name, value in expected.items() if not value.equal(found[name])]


@pytest.mark.long
@pytest.mark.parametrize("verdict", [SUPPORTED, WAITS])
def test_all_kinds_of_models_train_as_without_overlap(verdict: str, mpirun: Any, tmp_path: Path) -> None:
    assert differences(mpirun, tmp_path, {"verdict": verdict}, waits=verdict == WAITS) == []


@pytest.mark.sweep
@pytest.mark.parametrize(("seed", "verdict"), [(1, SUPPORTED), (2, SUPPORTED), (3, WAITS)])
def test_models_drawn_at_random_train_as_without_overlap(seed: int, verdict: str, mpirun: Any, tmp_path: Path) -> None:
    assert differences(mpirun, tmp_path, {"seed": seed, "verdict": verdict}, waits=verdict == WAITS) == []


VMAP = "torch.vmap over weights,torch.func.functional_call"
COMPILED = "model.compile(),@torch.compile on a function"


@pytest.mark.long
@pytest.mark.parametrize(
    ("kinds", "group_by", "waits"), [(VMAP, "bytes", False), (VMAP, "model", False), (COMPILED, "bytes", True)]
)
def test_functions_of_weights_train_as_without_overlap_however_these_travel(
    kinds: str, group_by: str, waits: bool, mpirun: Any, tmp_path: Path
) -> None:
    assert differences(mpirun, tmp_path, {"kinds": kinds}, group_by, waits=waits, workers=1) == []
