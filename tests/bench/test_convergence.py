"""The convergence table: real jobs, and figures that are those of their files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.bench.convergence import markdown, run
from psnode.errors import PsnodeError

pytestmark = pytest.mark.serial
COMMON = "--max-steps 6 --batch-size 8 --threads 1 --no-tensorboard"


def test_a_row_is_what_the_run_left_behind(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    result = run(["qsgd --lr 0.05"], COMMON, workers=2, seeds=[3], output=tmp_path, local=False)
    [row] = result["rows"]
    [train_dir] = tmp_path.iterdir()
    summary = json.loads((train_dir / "summary.json").read_bytes())
    [evaluation] = [json.loads(line) for line in (train_dir / "evaluations.jsonl").read_text().splitlines()]
    config = json.loads((train_dir / "config.json").read_bytes())["config"]
    assert (config["scheme"], config["lr"], config["seed"]) == ("qsgd", 0.05, 3)
    assert row["top1"] == evaluation["top1"]
    assert row["uplink_bytes"] == summary["uplink_bytes"] / 6 / 2
    assert row["ratio"] == summary["compression_ratio"]
    assert "| qsgd --lr 0.05 |" in markdown(result)


def test_a_run_that_fails_is_reported(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    with pytest.raises(PsnodeError, match="exit code 2"):
        run(["no-such-scheme"], COMMON, workers=1, seeds=[1], output=tmp_path, local=False)


def test_schemes_keep_up_with_dense(tmp_path: Path) -> None:
    """On 360 test images the accuracy of one run has a standard deviation of about 1 point."""
    common = "--max-steps 160 --batch-size 8 --lr 0.02 --lr-schedule cosine --threads 1 --no-tensorboard"
    result = run(["dense", "qsgd", "efsignsgd"], common, workers=4, seeds=[1], output=tmp_path, local=True)
    dense, *coded = result["rows"]
    assert dense["top1"] > 0.9
    for row in coded:
        assert row["top1"] > dense["top1"] - 0.04, row["run"]
        assert row["uplink_bytes"] < dense["uplink_bytes"] / 5
