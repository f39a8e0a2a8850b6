"""An unsound checkpoint does not replace a sound one, and a resumed run continues from a sound checkpoint."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch

from psnode.config import Config
from psnode.errors import DivergedError
from psnode.jobs.job import run
from psnode.master.checkpoints.soundness import Soundness
from psnode.master.events import Events
from psnode.master.start.resuming import _tell_of_soundness
from psnode.records import checkpoint, staging
from psnode.records.directory import RunDirectory
from psnode.records.metrics import METRICS, losses, read_records
from psnode.records.retention import is_sound, prune, verdict, why_unsound
from psnode.task import Task

HUGE = 3e38


class Examples:
    """Points on a line through zero with slope 2."""

    def __len__(self) -> int:
        return 64

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> torch.Tensor:
        return torch.from_numpy(1 + indices.astype(np.float32) / 64)


class Line(Task):
    """Fits the line by its absolute errors, whose gradients are finite for any slope. Worker 1 lies in backward pass `lie`."""

    def __init__(self, lie: int = -1, power: float = 1.0) -> None:
        super().__init__()
        self.lie, self.power, self.passes = lie, power, 0
        self.hook: torch.utils.hooks.RemovableHandle | None = None

    def model(self) -> torch.nn.Module:
        return torch.nn.ParameterDict({"slope": torch.zeros(3)})

    def train_data(self) -> Examples:
        return Examples()

    def eval_data(self) -> Examples:
        return Examples()

    def loss(self, model: torch.nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, None]:
        slope = model["slope"]  # type: ignore[index]
        if threading.current_thread().name == "worker-1":
            self.passes += 1
            if self.hook is not None:
                self.hook.remove()
            if self.passes == self.lie:
                self.hook = slope.register_hook(lambda gradient: torch.full_like(gradient, -HUGE))
        return ((slope[0] - 2) * batch).abs().pow(self.power).mean(), None

    def size(self, batch: torch.Tensor) -> int:
        return len(batch)


def config(folder: Path, **changed: Any) -> Config:
    settings: dict[str, Any] = {"scheme": "dense", "momentum": 0.0, "lr": 0.01, "batch_size": 4, "max_steps": 14, "local": 4}
    settings |= {
        "threads": 1,
        "tensorboard": False,
        "eval_freq": 1,
        "hash_every": 0,
        "log_interval": 1000,
        "keep_last": 1,
        "norm_cap": 0.0,
    }
    return Config(train_dir=folder, **{**settings, **changed})


def kept(folder: Path) -> dict[int, bool | None]:
    return {checkpoint.step_of(path): is_sound(path) for path in checkpoint.complete(folder)}


def slope(folder: Path) -> float:
    newest = checkpoint.latest(folder)
    assert newest is not None
    return float(checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)["slope"][0])


def events(folder: Path, name: str) -> list[tuple[int, str]]:
    lines = (folder / "events.jsonl").read_text().splitlines() if (folder / "events.jsonl").exists() else []
    return [(event["step"], event["reason"]) for event in map(json.loads, lines) if event["event"] == name]


def test_one_finite_gradient_of_3e38_deletes_no_sane_checkpoint(tmp_path: Path) -> None:
    """Check the checkpoints after worker 1 has sent one finite gradient of 3e38 in step 9: weights are then about 1e36, and
    version 8 is the last sane one.
    """
    rehearsals = passes_before_the_first_step(tmp_path / "plain")
    assert run(config(tmp_path / "run"), Line(lie=rehearsals + 9)) == 0
    assert abs(slope(tmp_path / "run")) < 2
    assert kept(tmp_path / "run") == {8: True, 14: False}
    told = events(tmp_path / "run", "unsound")
    assert [step for step, _ in told] == list(range(9, 15))
    assert "is above 10 times" in told[0][1] and told[0][1].endswith("--resume goes on from step 8")
    found = checkpoint.Checkpoint.open(tmp_path / "run" / "checkpoints" / "step-00000014")
    assert abs(float(found.tensors(checkpoint.MODEL)["slope"][0])) > 1e30
    assert run(config(tmp_path / "run", resume=True, max_steps=12), Line()) == 0
    assert kept(tmp_path / "run") == {11: True, 12: None, 14: False}
    assert abs(slope(tmp_path / "run")) < 2
    assert [step for step, _ in events(tmp_path / "run", "passed over")] == [8]
    assert [record["step"] for record in read_records(tmp_path / "run" / METRICS)] == list(range(1, 13))


def passes_before_the_first_step(folder: Path) -> int:
    """Return the number of losses that worker 1 computes before its training, in rehearsals."""
    task = Line()
    run(config(folder, max_steps=1), task)
    return task.passes - 1


def test_a_lie_in_the_last_step_leaves_the_one_before_and_the_resumed_run_finds_out(tmp_path: Path) -> None:
    before = passes_before_the_first_step(tmp_path / "plain")
    run(config(tmp_path / "run", max_steps=9), Line(lie=before + 9))
    assert kept(tmp_path / "run") == {8: True, 9: None}
    run(config(tmp_path / "run", max_steps=11, resume=True), Line())
    assert kept(tmp_path / "run") == {8: True, 11: False}
    assert abs(slope(tmp_path / "run")) < 2


def test_a_loss_that_is_not_finite_condemns_the_checkpoint_that_it_was_computed_on(tmp_path: Path) -> None:
    before = passes_before_the_first_step(tmp_path / "plain")
    with pytest.raises(DivergedError):
        run(config(tmp_path / "run"), Line(lie=before + 9, power=2.0))
    # the last version was not published if a part was still missing
    assert kept(tmp_path / "run") in ({8: True, 9: False}, {8: True})
    assert abs(slope(tmp_path / "run")) < 2


def test_a_run_without_harm_keeps_as_many_as_it_is_told_once_the_losses_are_known(tmp_path: Path) -> None:
    run(config(tmp_path / "run", max_steps=9, keep_last=2), Line())
    assert kept(tmp_path / "run") == {8: True, 9: None}
    assert events(tmp_path / "run", "unsound") == []


def test_a_usual_loss_is_one_below_ten_times_the_median_and_others_are_not_taken_for_usual() -> None:
    judge = Soundness([1.0, 2.0, 3.0, 4.0, 5.0])
    for loss, doubted in ((30.0, False), (36.0, True), (1e30, True), (29.0, False), (float("nan"), False)):
        judge.take(9, loss)
        assert bool(judge.doubt) == doubted
    for _ in range(1000):
        judge.take(9, 1e30)
    assert judge.doubt


@pytest.mark.parametrize("usual", [[], [1e-3] * 4, [-5.0] * 50, [0.0] * 50])
def test_without_a_positive_median_of_some_losses_a_finite_one_tells_nothing(usual: list[float]) -> None:
    judge = Soundness(usual)
    judge.take(9, 1e30)
    assert judge.doubt == ""


def test_losses_on_earlier_versions_say_nothing_of_a_later_one() -> None:
    judge = Soundness([1.0] * 10)
    judge.await_(20)
    judge.hear(1, 19, 1e9)
    judge.hear(2, 20, 1.0)
    assert list(judge.verdicts({1, 2})) == []
    judge.hear(1, 23, 2.0)
    judge.hear(1, 24, 1e9)  # a later report of the same rank
    assert list(judge.verdicts({1, 2})) == [(20, "")]
    assert list(judge.verdicts({1, 2})) == []


def published(folder: Path, step: int, **facts: Any) -> Path:
    draft = staging.StagedCheckpoint(folder, step)
    draft.add_tensors(checkpoint.MODEL, {"w": torch.zeros(2)})
    return draft.publish(facts)


def test_one_that_cannot_be_read_is_not_deleted_for_it(tmp_path: Path) -> None:
    paths = [published(tmp_path, step, sound=True) for step in (1, 2, 3)]
    (paths[1] / checkpoint.MANIFEST).write_text("{")
    prune(tmp_path, 3, keep_last=2)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path)] == [2, 3]


def test_a_foreign_reason_reaches_no_terminal_as_it_is(tmp_path: Path) -> None:
    path = published(tmp_path, 1, sound=False, unsound="a\x1b[2Jb\nc" + "x" * 9999)
    told = why_unsound(path)
    assert told.startswith("a?[2Jb c") and len(told) == 500
    assert [why_unsound(published(tmp_path, 2, **facts)) for facts in ({}, {"sound": None}, {"sound": [], "unsound": 3})] == [
        "",
        "",
        "3",
    ]


def test_of_unsound_checkpoints_only_those_newer_than_the_one_to_go_on_from_are_told(tmp_path: Path) -> None:
    """Check the reports if `latest` names step 5: 3 does not matter, 7 is reported, and 9 is as sound as 5."""
    for step, reason in ((3, "a loss of 30"), (5, ""), (7, "a loss of 70"), (9, "")):
        published(tmp_path, step, **verdict(reason))
    found = checkpoint.Checkpoint.open(tmp_path / checkpoint.CHECKPOINTS / checkpoint.step_directory(5))
    _tell_of_soundness(Events(tmp_path), cast(RunDirectory, SimpleNamespace(path=tmp_path)), found)
    [(step, told)] = events(tmp_path, "passed over")
    assert step == 5 and "step-00000007 is unsound: a loss of 70;" in told
    assert events(tmp_path, "unsound") == []


def test_records_without_a_loss_are_passed_over(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "loss": 3.0},
        {"step": 2},
        {"step": 3, "loss": float("nan")},
        {"step": 4, "loss": 5},
        {"step": 5, "loss": 6},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert list(losses(tmp_path / METRICS, 4)) == [3.0, 5.0]


def test_a_hard_example_late_in_training_is_no_wreck() -> None:
    """Check that a batch is sound whose loss of 0.3 is 100 times the late median, but far below that of the untrained model."""
    judge = Soundness([2.3, *[0.003] * 99])
    judge.take(101, 0.3)
    assert judge.doubt == ""
    judge.take(102, 2.3)
    assert "above 10 times" in judge.doubt


def test_a_step_without_any_report_says_nothing() -> None:
    judge = Soundness([1.0] * 10)
    judge.take(11, float("nan"))
    assert judge.doubt == ""
