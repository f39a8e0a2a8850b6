"""Lines that a run tells before its first step and after its last: they are true."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from psnode.config import Config
from psnode.config.amounts import amount
from psnode.config.load import load
from psnode.errors import ConfigurationError
from psnode.jobs.job import run
from psnode.tasks.classification import Classification

COORDINATES = 431_080  # of LeNet


def told(train_dir: Path, capfd: pytest.CaptureFixture[str], **changed: Any) -> tuple[list[str], list[str]]:
    """Lines of a run of two workers on standard error and on standard output."""
    settings = {"batch_size": 8, "max_steps": 3, "eval_freq": 2, "local": 2, "threads": 1, "tensorboard": False}
    assert run(Config(train_dir=train_dir, **{**settings, **changed})) == 0
    out, err = capfd.readouterr()
    return err.splitlines(), out.splitlines()


def entry(lines: list[str], label: str) -> str:
    """The text beside `label`, and in the lines that continue it."""
    start = next(number for number, line in enumerate(lines) if line.startswith(f"psnode: {label:11}"))
    parts = [lines[start][19:]]
    for line in lines[start + 1 :]:
        if not line.startswith("psnode:" + 12 * " "):
            break
        parts.append(line[19:])
    return " ".join(parts)


def test_a_run_says_what_it_does_before_it_begins_and_what_it_did(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    err, _ = told(tmp_path, capfd, scheme="qsgd")
    assert max(len(line) for line in err if str(tmp_path) not in line) <= 80
    assert entry(err, "model") == "LeNet on digits, 431,080 parameters, 1,437 examples"
    assert entry(err, "workers") == "2 x 8 = 16 examples a step; this host, CPU, 1 thread each"
    assert entry(err, "steps") == "3; 89 are an epoch"
    assert entry(err, "scheme") == "qsgd, lr 0.01; up qsgd; down qsgd"
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert f"3 steps in {summary['seconds']:.1f} s" in entry(err, "done")
    sent = amount(summary["uplink_bytes"] + summary["downlink_bytes"])
    whole = amount(3 * 2 * 8 * COORDINATES)
    assert entry(err, "sent") == f"{sent} instead of {whole}: {summary['compression_ratio']:.1f} times less than float32"
    assert entry(err, "weights").endswith("checkpoints/step-00000003/model.safetensors")
    assert entry(err, "next") == f"psnode evaluate --train-dir {tmp_path}"


@pytest.mark.parametrize("scheme", ["dense", "qsgd", "topk", "signsgd"])
def test_the_bytes_that_are_told_are_those_of_an_ordinary_step(
    scheme: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Schemes whose payloads have one size, but for the coding of indices: within a tenth."""
    err, _ = told(tmp_path, capfd, scheme=scheme)
    found = re.match(r"about ([\d.]+) (kB|MB) up, ([\d.]+) (kB|MB) down", entry(err, "a step"))
    assert found, err
    unit = {"kB": 1e3, "MB": 1e6}
    second = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1])
    assert float(found[1]) * unit[found[2]] == pytest.approx(second["uplink_bytes"], rel=0.1)
    assert float(found[3]) * unit[found[4]] == pytest.approx(second["downlink_bytes"], rel=0.1)


def test_the_memory_that_is_told_is_about_what_the_process_takes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A model of 11 million parameters: without them the figure would be some 45 MB for each vector too low."""
    changed = {"network": "FC", "dataset": "synthetic", "synthetic_shape": (3, 40, 40), "synthetic_examples": 64}
    err, _ = told(tmp_path, capfd, scheme="topk", **changed)
    found = re.search(r"about ([\d.]+) (MB|GB)", entry(err, "memory"))
    assert found
    peak = json.loads((tmp_path / "summary.json").read_text())["peak_memory_bytes"]
    assert float(found[1]) * {"MB": 1e6, "GB": 1e9}[found[2]] == pytest.approx(peak, rel=0.35)


def test_a_resumed_run_says_where_it_goes_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capfd)
    err, _ = told(tmp_path, capfd, resume=True, max_steps=5)
    assert entry(err, "resumed").startswith("after step 3 of 5; checkpoint of 20")
    assert "2 steps of 5" in entry(err, "done")


def test_a_run_that_is_complete_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capfd)
    err, _ = told(tmp_path, capfd, resume=True)
    assert entry(err, "done") == "nothing: it had its 3 steps; raise --max-steps or --epochs"


def test_a_start_that_ends_before_its_run_says_so_and_its_end_is_not_that_of_the_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    err, _ = told(tmp_path, capfd, max_steps=4, stop_after=2)
    assert entry(err, "steps").startswith("2 by --stop-after; ")
    assert entry(err, "next") == f"psnode train --local 2 --resume --train-dir {tmp_path}"
    assert json.loads((tmp_path / "summary.json").read_text())["stop_reason"] == "stop-after"
    err, _ = told(tmp_path, capfd, max_steps=4, stop_after=2, resume=True)
    assert entry(err, "done") == "nothing: it had its 2 steps; raise --stop-after"
    assert load({"resume": True, "train_dir": tmp_path, "local": 2}, {}).stop_after is None
    err, _ = told(tmp_path, capfd, max_steps=4, resume=True)
    assert "2 steps of 4" in entry(err, "done")
    assert json.loads((tmp_path / "summary.json").read_text())["stop_reason"] == "completed"


def test_a_start_ends_at_its_step_where_gradients_are_counted_too(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capfd, max_steps=None, epochs=1, stop_after=5, consistency="asp", scheme="qsgd")
    assert json.loads((tmp_path / "summary.json").read_text())["steps"] == 5


def test_a_start_that_would_end_behind_its_run_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--stop-after 4 is not before --max-steps 4: leave it out"):
        Config(max_steps=4, stop_after=4).validate()


def test_the_last_evaluation_is_told_with_the_way_to_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told(tmp_path, capfd)
    record = {"step": 3, "loss": 1.5, "top1": 0.625, "top5": 0.9, "examples": 360, "seconds": 0.1, "metrics": {"top1": 0.625}}
    (tmp_path / "evaluations.jsonl").write_text(json.dumps(record) + "\n")
    err, _ = told(tmp_path, capfd, resume=True, max_steps=4)
    assert entry(err, "evaluated") == "step 3: loss 1.5000, top1 62.50 %"
    assert entry(err, "next") == f"psnode train --local 2 --resume --max-steps 8 --train-dir {tmp_path}"


class Interrupted(Classification):
    """Presses Ctrl-C as it computes its third batch."""

    batches = 0

    def loss(self, model: torch.nn.Module, batch: Any) -> Any:
        self.batches += model.training
        if self.batches == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return super().loss(model, batch)


def test_an_interrupted_run_says_what_it_does_and_how_to_go_on(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = Config(train_dir=tmp_path, local=1, batch_size=8, max_steps=50, eval_freq=0, threads=1, tensorboard=False)
    assert run(config, Interrupted("LeNet", "digits", seed=1)) == 130
    err = capfd.readouterr().err.splitlines()
    assert "psnode: Ctrl-C: finishing this step and its checkpoint; again: end at once" in err
    stopped = re.match(r"by Ctrl-C after step (\d+) of 50; loss ", entry(err, "stopped"))
    assert stopped
    assert entry(err, "weights").endswith(f"checkpoints/step-{int(stopped[1]):08d}/model.safetensors")
    assert entry(err, "next") == "start the program again with resume=True"


def test_a_quiet_run_says_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert told(tmp_path, capfd, quiet=True) == ([], [])
