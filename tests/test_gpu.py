"""Training with the model on a CUDA device; skipped on machines without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.jobs.job import run

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("scheme", ["identity", "qsgd", "atomo"])
def test_training_on_a_gpu_lowers_the_loss_and_resumes_from_its_checkpoint(tmp_path: Path, scheme: str) -> None:
    settings = {"scheme": scheme, "enable_gpu": True, "local": 2, "threads": 1, "lr": 0.02, "tensorboard": False}
    assert run(Config(train_dir=tmp_path / "run", max_steps=60, **settings)) == 0
    assert run(Config(train_dir=tmp_path / "run", max_steps=80, resume=True, **settings)) == 0
    losses = [json.loads(line)["loss"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert len(losses) == 80
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_asking_for_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="no CUDA device") as caught:
        run(Config(train_dir=tmp_path / "run", enable_gpu=True, local=1))
    assert getattr(caught.value, "exit_code", None) == ConfigurationError.exit_code
    assert not (tmp_path / "run" / "checkpoints").exists()
