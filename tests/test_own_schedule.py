"""Task.learning_rate: weights equal those of torch with the same LambdaLR."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import psnode
from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.jobs.sessions.session_settings import with_own_rate
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains, torch_steps, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 9, 3, 0.2


def factor(step: int) -> float:
    """Return a factor that rises to 1 at step 3 and then falls."""
    return 1 / (1 + abs(step - 3))


class Paced(Trains):
    """Trains a network with one hidden layer."""

    def __init__(self) -> None:
        super().__init__(lambda: nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, CLASSES)), EXAMPLES)

    def learning_rate(self, step: int, *, lr: float, steps_per_epoch: int, total_steps: int) -> float:
        assert (steps_per_epoch, total_steps) == (1, STEPS)
        return lr * factor(step)


def by_torch() -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    model = Paced().model()
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
    return torch_steps(model, optimizer, EXAMPLES, STEPS, schedule.step)


def trained(folder: Path, task: psnode.Task, **settings: Any) -> dict[str, torch.Tensor]:
    known = {"scheme": "dense", "lr": LR, "momentum": 0.9, "seed": SEED, "batch_size": EXAMPLES // 2, "epochs": STEPS, "local": 2}
    known |= {"tensorboard": False, "threads": 1, "lr_schedule": "task", **settings}
    return weights_after(task, Config(train_dir=folder, **known))


def test_weights_are_those_of_torch_with_the_same_function(tmp_path: Path) -> None:
    found = trained(tmp_path, Paced())
    for name, weight in by_torch().items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5)


def test_a_coded_run_is_the_same_to_the_bit_where_it_is_resumed(tmp_path: Path) -> None:
    """Check that a resumed run is equal bit for bit if memories are in units of weights, for which workers need the same
    learning rates as the master.
    """
    settings = {"scheme": "topk:ratio=0.1", "min_compress_bytes": 0, "lr": 0.05}
    whole = trained(tmp_path / "whole", Paced(), **settings)
    parts = trained(tmp_path / "parts", Paced(), eval_freq=4, **settings)
    assert all(torch.equal(parts[name], weight) for name, weight in whole.items())
    (tmp_path / "parts" / "checkpoints" / "latest").write_text("step-00000004\n")
    again = trained(tmp_path / "parts", Paced(), eval_freq=4, resume=True, **settings)
    assert all(torch.equal(again[name], weight) for name, weight in whole.items())


def test_one_that_is_not_asked_for_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, Paced(), lr_schedule="cosine", epochs=1)
    assert "Task.learning_rate is not used: --lr-schedule is cosine, and task would use it" in capfd.readouterr().err
    trained(tmp_path / "used", Paced(), epochs=STEPS)
    assert "is not used" not in capfd.readouterr().err


def test_it_is_asked_for_where_there_is_one_and_only_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--lr-schedule task needs a schedule of the task's own"):
        trained(tmp_path, Trains(lambda: nn.Linear(WIDTH, CLASSES), EXAMPLES))
    assert with_own_rate({"lr": 0.1}) == {"lr": 0.1, "lr_schedule": "task"}
    with pytest.raises(ConfigurationError, match="learning_rate is the session's schedule, and lr_schedule is cosine"):
        with_own_rate({"lr_schedule": "cosine"})
