"""A process that removes files of a run during the writing of a checkpoint, for instance to free space."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.jobs.job import run
from psnode.master.checkpoints.contents import Draft
from psnode.records import checkpoint, staging
from psnode.records.checkpoint import Checkpoint
from psnode.records.directory import saved_config
from psnode.records.journal import Journal
from psnode.records.staging import StagedCheckpoint

STEP = 8  # of the checkpoint that is being written


def config(train_dir: Path, **changed: Any) -> Config:
    settings = {"scheme": "topk", "optimizer": "adam", "batch_size": 8, "max_steps": 16, "eval_freq": 4, "local": 2, "lr": 1e-4}
    settings |= {"network": "FC", "dataset": "digits", "threads": 1, "tensorboard": False, "pause_deadline": 20.0}
    return Config(train_dir=train_dir, **{**settings, **changed})


def remove_all(train_dir: Path) -> None:
    remove_at_once(train_dir / "checkpoints")


def remove_the_run(train_dir: Path) -> None:
    remove_at_once(train_dir)


def remove_at_once(path: Path) -> None:
    """Rename a directory, then remove it: rmtree alone fails if a file is added meanwhile to a directory that it has emptied."""
    shutil.rmtree(path.rename(path.with_name("gone")), ignore_errors=True)


def remove_the_draft(train_dir: Path) -> None:
    shutil.rmtree(train_dir / "checkpoints" / f".step-{STEP:08d}", ignore_errors=True)


def remove_the_parts(train_dir: Path) -> None:
    for path in (train_dir / "checkpoints").glob(f".step-{STEP:08d}.*"):
        shutil.rmtree(path)


def remove_one_file(train_dir: Path) -> None:
    (train_dir / "checkpoints" / f".step-{STEP:08d}" / checkpoint.worker_file(1)).unlink()


def remove_latest(train_dir: Path) -> None:
    (train_dir / "checkpoints" / "latest").unlink()


def meddled(monkeypatch: pytest.MonkeyPatch, moment: str, remove: Callable[[Path], None], train_dir: Path, step: int) -> None:
    """Make `remove` run once, before or after a function is called for the checkpoint of `step`. `moment` is "before NAME" or
    "after NAME".
    """
    where: Any
    when, name = moment.split()
    where = {"write_part": staging, "seal": Draft, "publish": StagedCheckpoint, "name_latest": staging}[name]
    own, done = getattr(where, name), list[int]()

    def meddling(*args: Any, **named: Any) -> Any:
        of = args[1] if name == "write_part" else args[0].staged.step if name == "seal" else getattr(args[0], "step", None)
        now = checkpoint.step_of(args[0]) == step if name == "name_latest" else of == step
        if now and not done and when == "before":
            done.append(1)
            remove(train_dir)
        found = own(*args, **named)
        if now and not done:
            done.append(1)
            remove(train_dir)
        return found

    monkeypatch.setattr(where, name, meddling)


def check_whole(train_dir: Path) -> list[int]:
    """Verify all files of the published checkpoints, and return their steps."""
    for path in checkpoint.complete(train_dir):
        Checkpoint.open(path).verify()
    return [checkpoint.step_of(path) for path in checkpoint.complete(train_dir)]


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("remove", "moment", "saved"),
    [
        (remove_all, "before write_part", [12, 16]),
        (remove_all, "after write_part", [12, 16]),
        (remove_all, "before seal", [12, 16]),
        (remove_the_run, "after write_part", [12, 16]),
        (remove_the_draft, "before publish", [4, 12, 16]),
        (remove_one_file, "before publish", [4, 12, 16]),
        (remove_one_file, "before seal", [4, 12, 16]),
        (remove_the_parts, "before write_part", [8, 12, 16]),
        (remove_the_parts, "before publish", [8, 12, 16]),
        (remove_latest, "before publish", [8, 12, 16]),
    ],
)
def test_a_checkpoint_whose_files_are_removed_is_given_up_and_training_goes_on(
    remove: Callable[[Path], None],
    moment: str,
    saved: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Check that neither of 2 workers is suspended or lost, that published checkpoints are complete, and that --resume
    continues the run.
    """
    train_dir = tmp_path / "run"
    meddled(monkeypatch, moment, remove, train_dir, STEP)
    assert run(config(train_dir)) == 0
    monkeypatch.undo()
    told = capfd.readouterr().err
    assert check_whole(train_dir) == saved
    assert json.loads((train_dir / "summary.json").read_text())["steps"] == 16
    assert "suspended" not in told and "lost:" not in told
    given_up = f"step {STEP}: not saved: its checkpoint cannot be written: another process has removed files of it"
    assert (given_up in told) == (STEP not in saved), told
    if remove is remove_the_run:
        assert "metrics.jsonl was removed: it starts again" in told
        assert saved_config(train_dir).max_steps == 16
    assert run(config(train_dir, max_steps=17, resume=True)) == 0


def test_a_last_checkpoint_that_is_removed_ends_with_5_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train_dir = tmp_path / "run"
    meddled(monkeypatch, "before seal", remove_all, train_dir, 4)
    told = r"step 4 cannot be written \(another process has removed files of it\), there is none: let nothing delete"
    with pytest.raises(CheckpointError, match=told):
        run(config(train_dir, max_steps=4))


def test_a_run_whose_latest_is_gone_goes_on_from_its_newest_checkpoint(tmp_path: Path) -> None:
    train_dir = tmp_path / "run"
    assert run(config(train_dir, max_steps=4, local=1)) == 0
    remove_latest(train_dir)
    assert run(config(train_dir, max_steps=6, local=1, resume=True)) == 0
    steps = [json.loads(line)["step"] for line in (train_dir / "metrics.jsonl").read_text().splitlines()]
    assert steps == [1, 2, 3, 4, 5, 6]


def test_a_journal_whose_file_is_removed_begins_anew_when_there_is_a_place(tmp_path: Path) -> None:
    place = tmp_path / "run"
    place.mkdir()
    journal = Journal(place / "lines")
    journal.append(b"1")
    shutil.rmtree(place)
    journal.append(b"2")
    place.mkdir()
    journal.append(b"3")
    journal.close()
    assert (place / "lines").read_bytes() == b"2\n3\n"
