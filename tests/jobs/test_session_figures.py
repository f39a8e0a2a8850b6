"""Figures of a session that rank 0 reads from the run's records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from psnode.config import Config
from psnode.jobs.sessions.figures import RecordedFigures, workers_at_end
from psnode.records.metrics import METRICS


@pytest.mark.parametrize(("first", "total"), [(0, 32), (32, 48)])
def test_the_last_step_counts_the_steps_that_another_number_of_workers_took(tmp_path: Path, first: int, total: int) -> None:
    """Check the total number of steps in a run of 2 epochs, of 16 steps each with two workers. If `first` is 32, one worker
    took the first epoch in 32 steps.
    """
    epochs = first // 32
    last = {"step": total, "epoch": epochs + (total - first) / 16, "lr": 0.05}
    (tmp_path / METRICS).write_text(json.dumps(last) + "\n")
    found = RecordedFigures(tmp_path, Config(train_dir=tmp_path, epochs=2), 16)
    assert (found.total_steps, found.steps_per_epoch, found.epoch, found.lr) == (total, 16, 2, 0.05)


@pytest.mark.parametrize(("parts", "workers"), [([[0, 3]], 3), ([[0, 3], [40, 2]], 2)])
def test_epochs_are_those_of_the_workers_that_are_left_at_the_end(tmp_path: Path, parts: list[list[int]], workers: int) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"config": {}, "plan": {}, "workers": 3, "parts": parts}))
    assert workers_at_end(tmp_path) == workers
