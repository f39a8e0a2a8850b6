"""The checker of histories: no complaint about a real run resumed after a kill, and a complaint about every falsified history."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.jobs.job import run
from psnode.records.history import HISTORY, violations

Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run that looks as if it had been killed in step 6, two steps after the checkpoint of step 4, and that was
    resumed for three steps.
    """
    train_dir = tmp_path_factory.mktemp("history") / "run"
    settings: dict[str, Any] = {
        "scheme": "qsgd", "feedback": "ef", "batch_size": 8, "eval_freq": 2, "keep_last": 0, "local": 2, "lr": 0.02, "threads": 1,
        "tensorboard": False, "group_by": "layer", "record_history": True, "train_dir": train_dir,
    }  # fmt: skip
    run(Config(**settings, max_steps=6))
    (train_dir / "checkpoints" / "latest").write_text("step-00000004\n")
    for file in sorted((train_dir / "checkpoints" / "step-00000006").rglob("*"), reverse=True):
        file.unlink() if file.is_file() else file.rmdir()
    (train_dir / "checkpoints" / "step-00000006").rmdir()
    run(Config(**settings, max_steps=7, resume=True))
    return train_dir


def lines_of(train_dir: Path) -> Lines:
    return [json.loads(line) for line in (train_dir / HISTORY).read_text().splitlines()]


def test_a_run_and_its_continuation_have_no_violations(resumed: Path) -> None:
    lines = lines_of(resumed)
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6, 7]
    assert violations(resumed) == []
    # an exact resume gives the same weights
    assert [line["hash"] for line in lines if line["step"] in (5, 6)][:2] == [line["hash"] for line in lines[8:10]]


def again(lines: Lines) -> None:
    lines[9]["groups"][3].append(lines[8]["groups"][3][0])


def twice(lines: Lines) -> None:
    lines[9]["groups"][0].append(lines[9]["groups"][0][1])


def stale(lines: Lines) -> None:
    lines[10]["groups"][2][0][2] -= 1


def ahead(lines: Lines) -> None:
    lines[10]["groups"][2][0][2] += 1


def gap(lines: Lines) -> None:
    del lines[9]


def elsewhere(lines: Lines) -> None:
    lines[7]["hash"] = "0"


def other_weights(lines: Lines) -> None:
    lines[4]["hash"] = lines[7]["hash"] = "0"


def empty(lines: Lines) -> None:
    lines.clear()


@pytest.mark.parametrize(
    ("lie", "word"),
    [
        (again, "comes after"), (twice, "comes after"), (stale, "computed on"), (ahead, "computed on"), (gap, "follows"),
        (elsewhere, "does not continue the recorded weights"), (other_weights, "does not hold"), (empty, "nothing was applied"),
    ],
)  # fmt: skip
def test_a_false_history_is_noticed(resumed: Path, tmp_path: Path, lie: Callable[[Lines], None], word: str) -> None:
    lines = lines_of(resumed)
    lie(lines)
    (tmp_path / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "checkpoints").symlink_to(resumed / "checkpoints")
    assert any(word in violation for violation in violations(tmp_path))


def test_staleness_is_allowed_where_it_is_meant(resumed: Path, tmp_path: Path) -> None:
    lines = lines_of(resumed)
    stale(lines)
    (tmp_path / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert violations(tmp_path, staleness=1) == violations(tmp_path, staleness=None) == []
