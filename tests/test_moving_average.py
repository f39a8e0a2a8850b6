"""--ema-decay: averages equal those of torch's AveragedModel."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import psnode
from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.evaluator import follow
from psnode.records import checkpoint
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Constrained, Points, loss_of, torch_steps

EXAMPLES, STEPS, SEED, LR, DECAY = 16, 8, 3, 0.2, 0.7


class Net(nn.Module):
    """A model with a tied weight and a buffer; the weights of the first layer are bounded."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.middle, self.head = nn.Linear(WIDTH, 24), nn.Linear(24, 24), nn.Linear(24, CLASSES)
        self.again = self.middle
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.again(torch.tanh(self.middle(torch.tanh(self.inner(x))))) * self.scale)
        return out

    @torch.no_grad()
    def constrain(self) -> None:
        self.inner.weight.clamp_(-0.1, 0.1)


def by_torch() -> AveragedModel:
    torch.manual_seed(SEED)
    model = Net()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY))
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)

    def average_them() -> None:
        model.constrain()
        average.update_parameters(model)

    torch_steps(model, optimizer, EXAMPLES, STEPS, average_them)
    return average


def task() -> psnode.Task:
    return Constrained(Net, EXAMPLES)


def trained(folder: Path, **settings: Any) -> dict[str, torch.Tensor]:
    """Return the averages stored in the last checkpoint."""
    known = {"scheme": "dense", "lr": LR, "momentum": 0.9, "seed": SEED, "batch_size": EXAMPLES // 2, "max_steps": STEPS}
    known |= {"local": 2, "tensorboard": False, "threads": 1, "group_by": "layer", "ema_decay": DECAY, "eval_freq": 3, **settings}
    assert psnode.run(task(), Config(train_dir=folder, **known)) == 0
    newest = checkpoint.latest(folder)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.EMA)


def test_averages_are_torchs_and_what_evaluate_measures(tmp_path: Path) -> None:
    found, expected = trained(tmp_path), by_torch()
    weights = expected.module.state_dict()
    assert found.keys() == weights.keys()
    for name, value in weights.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert follow(tmp_path, once=True, task=task(), ema=True) == 0
    assert follow(tmp_path, once=True, task=task()) == 0
    records = [json.loads(line) for line in (tmp_path / "evaluations-ema.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == [3, 6, 8]
    loss = float(loss_of(expected, *Points(EXAMPLES).batch(np.arange(EXAMPLES), None)).detach())
    assert records[-1]["loss"] == pytest.approx(loss, rel=1e-4)
    plain = [json.loads(line)["loss"] for line in (tmp_path / "evaluations.jsonl").read_text().splitlines()]
    assert abs(plain[-1] - loss) > 1e-3


def test_averages_of_a_coded_run_are_the_same_to_the_bit_where_it_is_resumed(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"scheme": "topk:ratio=0.1", "min_compress_bytes": 0, "lr": 0.05}
    whole = trained(tmp_path, **settings)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000003\n")
    again = trained(tmp_path, resume=True, **settings)
    assert all(torch.equal(again[name], value) for name, value in whole.items())


def test_a_run_without_averages_has_none_to_go_on_with_or_to_measure(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"lacks ema\.safetensors"):
        trained(tmp_path, ema_decay=None, max_steps=2)
    assert not list(tmp_path.glob("checkpoints/*/ema.safetensors"))
    with pytest.raises(ConfigurationError, match=r"--ema evaluates moving averages, and the run in .* has none"):
        follow(tmp_path, once=True, task=task(), ema=True)
    with pytest.raises(ConfigurationError, match=r"--ema-decay is None in the checkpoint but 0.7 now"):
        trained(tmp_path, resume=True)
