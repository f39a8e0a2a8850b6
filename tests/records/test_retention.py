"""Checkpoints that are kept: the newest three, the best one that an evaluator found, and one that is being read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records import checkpoint, staging
from psnode.records.branches import evaluations
from psnode.records.metrics import EVALUATIONS
from psnode.records.retention import best_evaluated, judge, prune, reading


def published(train_dir: Path, steps: range) -> None:
    for step in steps:
        staging.StagedCheckpoint(train_dir, step).publish({"workers": 1})


def there(train_dir: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.complete(train_dir)]


def evaluated(train_dir: Path, *records: dict[str, Any]) -> None:
    (train_dir / EVALUATIONS).write_text("".join(json.dumps(record) + "\n" for record in records))


@pytest.mark.parametrize(
    ("records", "kept"),
    [
        ([], [4, 5]),
        ([{"step": 1, "loss": 0.5, "top1": 0.9}, {"step": 2, "loss": 0.4, "top1": 0.8}], [1, 4, 5]),
        ([{"step": 1, "loss": 0.5, "top1": None}, {"step": 2, "loss": 0.4, "top1": None}], [2, 4, 5]),
        ([{"step": 1, "loss": 0.5, "top1": 0.9}, {"step": 2, "loss": 0.6, "top1": 0.9}], [2, 4, 5]),
        ([{"step": 1, "loss": "?"}, {"step": 9, "loss": 0.1, "top1": 1.0}], [4, 5]),
        ([{"step": 2, "loss": 0.5, "top1": 0.5}, {"step": 1, "loss": 10**400}], [2, 4, 5]),
    ],
    ids=["none", "accuracy", "loss", "the later of two alike", "no figures, or of a step that is not there", "too large"],
)
def test_the_best_that_was_measured_stays_beside_the_newest(
    tmp_path: Path, records: list[dict[str, Any]], kept: list[int]
) -> None:
    published(tmp_path, range(1, 6))
    evaluated(tmp_path, *records)
    prune(tmp_path, 5, keep_last=2)
    assert there(tmp_path) == kept


def test_one_that_is_being_read_stays_until_it_is_not(tmp_path: Path) -> None:
    published(tmp_path, range(1, 5))
    with reading(checkpoint.complete(tmp_path)[0]):
        prune(tmp_path, 4, keep_last=1)
        assert there(tmp_path) == [1, 4]
    prune(tmp_path, 4, keep_last=1)
    assert there(tmp_path) == [4]


def test_one_that_is_being_read_stays_also_when_its_verdict_is_written_meanwhile(tmp_path: Path) -> None:
    """Check that a checkpoint stays while it is read, even if a verdict is written, which replaces the manifest by a new
    file.
    """
    published(tmp_path, range(1, 5))
    first = checkpoint.complete(tmp_path)[0]
    with reading(first):
        judge(first, "")
        checkpoint.name_latest(checkpoint.complete(tmp_path)[-1])
        prune(tmp_path, 4, keep_last=1)
        assert there(tmp_path) == [1, 4]
    prune(tmp_path, 4, keep_last=1)
    assert there(tmp_path) == [4]


def of_start(train_dir: Path, begun: str, since: int, steps: list[int]) -> None:
    """Publish the checkpoints that one start of a job made at `steps`. `begun` names the start, which continued from step
    `since`; the weights contain this name.
    """
    for step in steps:
        draft = staging.StagedCheckpoint(train_dir, step)
        draft.add(checkpoint.MODEL, f"{begun} {step}".encode())
        draft.publish({"workers": 1, "begun": begun, "since": since, "sound": True})


def digest_of(train_dir: Path, step: int) -> str:
    path = train_dir / checkpoint.CHECKPOINTS / checkpoint.step_directory(step)
    return str(checkpoint.Checkpoint.open(path).facts["files"][checkpoint.MODEL]["xxh3_128"])


def test_nothing_of_another_future_is_the_best_or_takes_a_place(tmp_path: Path) -> None:
    """Check a job that runs to step 40, returns to step 20, and continues to 50 without a checkpoint at 40."""
    of_start(tmp_path, "first", 0, [10, 20, 30, 40])
    digests = {step: digest_of(tmp_path, step) for step in (10, 20, 30, 40)}
    records = [{"step": step, "loss": 0.5, "top1": step / 100, "model": digests[step]} for step in digests]
    evaluated(tmp_path, *records)
    assert best_evaluated(tmp_path) == checkpoint.complete(tmp_path)[-1]
    checkpoint.name_latest(checkpoint.complete(tmp_path)[1])
    assert best_evaluated(tmp_path) == checkpoint.complete(tmp_path)[1]
    assert [record["step"] for record in evaluations(tmp_path, EVALUATIONS)] == [10, 20]

    of_start(tmp_path, "second", 20, [30])  # other weights, which are not yet evaluated
    assert best_evaluated(tmp_path) == checkpoint.complete(tmp_path)[1]
    of_start(tmp_path, "second", 20, [50])
    prune(tmp_path, 50, keep_last=3)
    assert there(tmp_path) == [20, 30, 50]
    # nothing else mentions step 40 any more
    assert [record["step"] for record in evaluations(tmp_path, EVALUATIONS)] == [10, 20, 40]


def test_reading_one_that_is_gone_is_for_its_reader_to_find_out(tmp_path: Path) -> None:
    with reading(tmp_path / "checkpoints" / "step-00000001"):
        pass


def steps_kept(folder: Path, **changed: Any) -> list[int]:
    settings = {"scheme": "dense", "batch_size": 8, "max_steps": 6, "local": 1, "threads": 1, "tensorboard": False, "quiet": True}
    assert run(Config(train_dir=folder, **{**settings, **changed})) == 0
    return there(folder)


def test_three_are_kept_unless_asked_otherwise(tmp_path: Path) -> None:
    assert steps_kept(tmp_path / "usual", eval_freq=1) == [4, 5, 6]
    assert steps_kept(tmp_path / "all", eval_freq=1, keep_last=0) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("minutes", "kept"), [(1e-9, [1, 2, 3, 4, 5, 6]), (1e6, [6]), (0.0, [6])])
def test_checkpoints_by_time(tmp_path: Path, minutes: float, kept: list[int]) -> None:
    """Check intervals of a billionth of a minute, which every step exceeds, and of a million minutes, which all steps
    together do not reach.
    """
    assert steps_kept(tmp_path, eval_freq=0, keep_last=0, checkpoint_minutes=minutes) == kept
