"""The table of liars: each lie does as its name says, one worker lies, and finished runs are read."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from studies.harness import page
from studies.liars import HONEST, LIES, STUDY, Options, lie_of, measure, trial

SETTINGS = {"network": "FC", "dataset": "digits", "scheme": "dense", "local": 2, "max_steps": 2, "threads": 1, "momentum": 0.0}


def test_lies_are_what_their_names_say() -> None:
    gradient = torch.linspace(-1, 2, 1000)
    found = {name: lie_of(name, 1) for name in (HONEST, *LIES)}
    for name, factor in ((HONEST, 1), ("flip", -1), ("x100", 100), ("x-10", -10)):
        assert torch.equal(found[name](gradient), factor * gradient)
    noise = found["noise"](gradient) - gradient
    # a share of 1e-6 of the seeds would fail
    assert float(noise.norm() / gradient.norm()) == pytest.approx(10, rel=5 / math.sqrt(2 * 1000))
    assert torch.equal(found["replay"](gradient), gradient)
    assert torch.equal(found["replay"](-5 * gradient), gradient)


def test_a_row_for_every_lie_and_defence_and_done_runs_are_read(tmp_path: Path) -> None:
    options = Options(workers=2, steps=2, defence=("mean", "clip"), lie=("x100",), seed=(1,), output=tmp_path)
    rows = measure(options).rows
    assert [row["lie"] for row in rows] == [HONEST, "x100"]
    accuracies = {(row["lie"], name): row[name]["all_top1"][0] for row in rows for name in ("mean", "clip")}
    assert accuracies["x100", "mean"] != accuracies[HONEST, "mean"]  # two steps of 1.5 are enough to spoil the result
    assert all(0 <= value <= 1 for value in accuracies.values())
    (tmp_path / "x100-mean-1" / "trial.json").write_text('{"top1": null, "step": 1.0, "decode": 1.0}')
    again = measure(options)
    assert again.rows[1]["mean"]["all_top1"] == [None] and again.rows[0] == rows[0]
    result = {"date": "D", "cpu": "C", "cores": 2, **vars(options), **again.facts, "rows": again.rows}
    assert "| x100 | ended 1 of 1 | " in page(STUDY, result)


def test_a_run_that_diverges_has_no_accuracy(tmp_path: Path) -> None:
    found = trial({**SETTINGS, "lr": 1e30, "max_steps": 4}, "x100", 1, tmp_path / "trial")
    assert found["top1"] is None and "not finite" in found["ended"]
