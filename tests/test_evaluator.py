"""The evaluator: it evaluates every complete checkpoint once, and reports and skips broken checkpoints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from psnode.cli import main
from psnode.config import Config
from psnode.config.logs import shown
from psnode.errors import CheckpointError, ConfigurationError, DeadlineExceededError, DeviceError
from psnode.evaluator import Evaluator, follow
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.directory import saved_config
from psnode.records.weights import weights_of
from psnode.report.run import read
from psnode.tasks.classification import Classification


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with checkpoints after steps 4, 8, 12 and 14."""
    train_dir = tmp_path_factory.mktemp("finished") / "run"
    settings: dict[str, Any] = {"scheme": "dense", "local": 2, "threads": 1, "tensorboard": False, "keep_last": 0}
    run(Config(train_dir=train_dir, max_steps=14, eval_freq=4, lr=0.05, **settings))
    return train_dir


@pytest.fixture
def train_dir(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def evaluations(train_dir: Path) -> list[dict[str, Any]]:
    path = train_dir / "evaluations.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_every_checkpoint_is_measured_once(train_dir: Path) -> None:
    assert follow(train_dir, interval=0.01) == 0
    assert follow(train_dir, interval=0.01) == 0
    assert [record["step"] for record in evaluations(train_dir)] == [4, 8, 12, 14]


def test_the_figures_are_those_of_a_plain_loop_over_the_test_set(train_dir: Path) -> None:
    follow(train_dir, checkpoint="14", batch_size=77)
    [record] = evaluations(train_dir)
    task = Classification("LeNet", "digits", seed=1)
    model = task.model()
    found = checkpoint.Checkpoint.open(train_dir / "checkpoints" / "step-00000014")
    model.load_state_dict(found.tensors(checkpoint.MODEL))
    model.eval()
    import numpy as np

    data = task.eval_data()
    images, labels = data.batch(np.arange(len(data)), None)
    with torch.no_grad():
        logits = model(images)
    assert record["examples"] == 360
    assert record["top1"] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert record["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels)), rel=1e-5)
    assert record["top1"] <= record["top5"] <= 1


def test_a_checkpoint_may_be_named_by_step_or_path(train_dir: Path) -> None:
    follow(train_dir, checkpoint="8")
    follow(train_dir, checkpoint=str(train_dir / "checkpoints" / "step-00000004"))
    assert [record["step"] for record in evaluations(train_dir)] == [8, 4]


def test_an_unknown_checkpoint_is_refused_with_those_there_are(train_dir: Path) -> None:
    with pytest.raises(ConfigurationError, match="4, 8, 12, 14"):
        follow(train_dir, checkpoint="5")


def test_broken_checkpoints_are_reported_and_the_others_measured(train_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = train_dir / "checkpoints" / "step-00000008" / "model.safetensors"
    model.write_bytes(model.read_bytes()[:1000])
    (train_dir / "checkpoints" / "step-00000012" / "manifest.json").write_text("{")
    (train_dir / "checkpoints" / ".step-00000016").mkdir()
    assert follow(train_dir, interval=0.01) == CheckpointError.exit_code
    assert [record["step"] for record in evaluations(train_dir)] == [4, 14]
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "step-00000008" in lines[0]
    assert "step-00000012" in lines[1]


@pytest.mark.parametrize("where", ["to", "load_state_dict", "loss"])
def test_a_device_that_fails_is_no_fault_of_a_checkpoint(train_dir: Path, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr(Classification if where == "loss" else torch.nn.Module, where, fails)
    with pytest.raises(DeviceError, match=r"out of memory: lower --batch-size \(256\) \(CUDA out of memory"):
        follow(train_dir, interval=0.01, batch_size=256)


def test_a_checkpoint_that_was_measured_is_not_recorded_again(train_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(2):
        follow(train_dir, checkpoint="8")
    assert [record["step"] for record in evaluations(train_dir)] == [8]
    assert capsys.readouterr().out.count("step 8: loss") == 2


def test_a_checkpoint_of_another_run_is_measured_but_not_recorded(train_dir: Path, finished: Path, tmp_path: Path) -> None:
    follow(train_dir, checkpoint=str(finished / "checkpoints" / "step-00000004"))
    assert evaluations(train_dir) == []


def test_a_run_that_was_killed_is_not_waited_for_without_end(train_dir: Path) -> None:
    (train_dir / "summary.json").unlink()
    with pytest.raises(DeadlineExceededError, match="has not ended"):
        follow(train_dir, interval=0.05, patience=0.3)
    assert [record["step"] for record in evaluations(train_dir)] == [4, 8, 12, 14]


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="holds no run"):
        follow(tmp_path, patience=0.1, interval=0.01)


def test_a_run_that_stopped_to_be_continued_is_waited_for(train_dir: Path) -> None:
    summary = json.loads((train_dir / "summary.json").read_bytes())
    (train_dir / "summary.json").write_text(json.dumps({**summary, "exit_code": 75}))
    assert follow(train_dir, interval=0.05, patience=0.3) == 0
    assert len(evaluations(train_dir)) == 4


def resumed_from(train_dir: Path, step: int, **settings: Any) -> None:
    """Return to the checkpoint of `step`, and continue with one worker instead of two."""
    (train_dir / "checkpoints" / "latest").write_text(f"step-{step:08d}\n")
    same: dict[str, Any] = {"scheme": "dense", "threads": 1, "tensorboard": False, "lr": 0.05, "resume": True, "keep_last": 0}
    run(Config(train_dir=train_dir, local=1, **same, **settings))


def test_a_branch_that_was_left_is_forgotten_and_the_new_one_measured(train_dir: Path) -> None:
    """Check that the evaluator forgets a left branch. Steps 8 and 12 are written again with other weights; the old step 14
    remains, and no file name shows that it is outdated.
    """
    assert follow(train_dir, interval=0.01) == 0
    before = {record["step"]: record["loss"] for record in evaluations(train_dir)}
    resumed_from(train_dir, 4, max_steps=18, eval_freq=4)
    assert [checkpoint.step_of(path) for path in checkpoint.complete(train_dir)] == [4, 8, 12, 14, 16, 18]
    assert follow(train_dir, interval=0.01) == 0
    after = {record["step"]: record["loss"] for record in evaluations(train_dir)}
    assert [record["step"] for record in evaluations(train_dir)] == [4, 8, 12, 16, 18]
    assert after[4] == before[4]
    assert after[8] != before[8] and after[12] != before[12]
    (train_dir / "evaluations.jsonl").unlink()
    assert follow(train_dir, interval=0.01) == 0
    assert {record["step"]: record["loss"] for record in evaluations(train_dir)} == after


def test_runs_report_and_best_know_no_other_future(train_dir: Path) -> None:
    assert follow(train_dir, interval=0.01) == 0
    records = [{**record, "top1": record["step"] / 100} for record in evaluations(train_dir)]
    (train_dir / "evaluations.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    assert read(train_dir).best == 0.14
    (train_dir / "checkpoints" / "latest").write_text("step-00000008\n")
    assert read(train_dir).best == 0.08
    assert weights_of(train_dir, "best")[0] == 8
    resumed_from(train_dir, 8, max_steps=20, eval_freq=0)
    for gone in (12, 14):  # nothing else now shows that these checkpoints existed
        shutil.rmtree(train_dir / "checkpoints" / f"step-{gone:08d}")
    assert read(train_dir).best == 0.08
    assert weights_of(train_dir, "best")[0] == 8
    assert [record["step"] for record in evaluations(train_dir)] == [4, 8]


def test_an_evaluator_at_work_notices_that_a_run_went_back(train_dir: Path) -> None:
    found = Evaluator(train_dir, saved_config(train_dir), None, None)
    assert found.measure_all()
    resumed_from(train_dir, 8, max_steps=10, eval_freq=0)
    assert found.measure_all()
    assert not found.measure_all()
    found.close()
    assert [record["step"] for record in evaluations(train_dir)] == [4, 8, 10]


def test_records_that_do_not_name_the_weights_count_for_their_step(train_dir: Path) -> None:
    """Check that records without a hash of the weights, such as earlier versions of psnode wrote, count for their step."""
    assert follow(train_dir, interval=0.01) == 0
    path = train_dir / "evaluations.jsonl"
    path.write_text("".join(json.dumps({**record, "model": None}) + "\n" for record in evaluations(train_dir)))
    content = path.read_bytes()
    assert follow(train_dir, interval=0.01) == 0
    assert path.read_bytes() == content


OWN_LOGGER = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()
class Own:
    def begin(self, run): ...
    def event(self, step, text): ...
    def end(self, summary): ...
    def scalars(self, step, values): ...
"""


def test_neither_a_codec_nor_loggers_that_a_record_names_are_needed_to_evaluate(
    train_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that the documented remedy for loggers works; evaluation does not need the run's codec."""
    logger = tmp_path / "own.py"
    logger.write_text(OWN_LOGGER)
    record = json.loads((train_dir / "config.json").read_bytes())
    record["config"] |= {"codec": "/nowhere/own.py:Codec", "log_to": [f"{logger}:Own"]}
    (train_dir / "config.json").write_text(json.dumps(record))
    assert main(["evaluate", "--train-dir", str(train_dir), "--checkpoint", "8"]) == 0
    assert f"{logger}:Own, which only the run's record names: add --trust-run" in capsys.readouterr().err
    assert [record["step"] for record in evaluations(train_dir)] == [8]
    assert not logger.with_suffix(".ran").exists()
    assert main(["evaluate", "--train-dir", str(train_dir), "--checkpoint", "12", "--trust-run"]) == 0
    assert logger.with_suffix(".ran").exists()


def test_the_task_that_a_record_names_is_evaluated_by_each_of_the_two_remedies(
    train_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = tmp_path / "own_task.py"
    task.write_text(
        "from psnode.tasks.classification import Classification\n"
        "class Own(Classification):\n    def __init__(self, config):\n        super().__init__('LeNet', 'digits', seed=1)\n"
    )
    record = json.loads((train_dir / "config.json").read_bytes())
    record["config"] |= {"task": str(task)}
    (train_dir / "config.json").write_text(json.dumps(record))
    command = ["evaluate", "--train-dir", str(train_dir), "--checkpoint"]
    assert main([*command, "4"]) == 2
    assert "name it again with --task, or add --trust-run" in capsys.readouterr().err
    assert main([*command, "8", "--task", str(task)]) == 0
    assert main([*command, "12", "--trust-run"]) == 0
    assert [record["step"] for record in evaluations(train_dir)] == [8, 12]


def test_who_waits_for_a_run_says_so_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shown(), pytest.raises(ConfigurationError, match="holds no run"):
        follow(tmp_path / "later", patience=0.2, interval=0.01)
    assert capsys.readouterr().err == f"psnode: waiting for a run in {tmp_path / 'later'}, for 0.2 s at most\n"


def test_who_looks_once_waits_for_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with shown(), pytest.raises(ConfigurationError, match="holds no run"):
        follow(tmp_path / "later", once=True)
    assert capsys.readouterr().err == ""
