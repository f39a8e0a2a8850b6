"""A task whose data are a torch data set trains as plain PyTorch does, and resumes bit for bit, also with data processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from psnode.config import Config
from psnode.task import Batch, Task
from psnode.tasks.data.given import data_of
from psnode.tasks.data.sampler import Sampler
from tests.kinds.task import weights_after

EXAMPLES, WIDTH, CLASSES, BATCH, SEED, STEPS = 24, 6, 3, 4, 5, 8


class Points(Dataset[Any]):
    """Random points; each access adds newly drawn noise."""

    def __init__(self, noise: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(EXAMPLES, WIDTH, generator=generator)
        self.y = torch.randint(CLASSES, (EXAMPLES,), generator=generator)
        self.noise = noise

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        return {"x": self.x[index] + self.noise * torch.randn(WIDTH), "y": self.y[index]}


class Stream(IterableDataset[Any]):
    """All points, in order."""

    def __iter__(self) -> Any:
        points = Points()
        return (points[index] for index in range(EXAMPLES))


class Trains(Task):
    """Trains one layer; with dropout if `data` is a Points and `steps` is None."""

    def __init__(self, data: Any, steps: int | None = None) -> None:
        super().__init__()
        self.data, self.steps = data, steps

    def model(self) -> nn.Module:
        return nn.Sequential(
            nn.Dropout(0.2 if self.steps is None and self.data.__class__ is Points else 0.0), nn.Linear(WIDTH, CLASSES)
        )

    def train_data(self) -> Any:
        return self.data

    def eval_data(self) -> Any:
        return DataLoader(Points(), batch_size=7)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, None]:
        return functional.cross_entropy(model(batch["x"]), batch["y"]), None

    def size(self, batch: Batch) -> int:
        return len(batch["y"])

    @property
    def steps_per_epoch(self) -> int | None:
        return self.steps


def trained(folder: Path, task: Task, **settings: Any) -> dict[str, torch.Tensor]:
    known: dict[str, Any] = {"scheme": "dense", "lr": 0.1, "seed": SEED, "batch_size": BATCH, "max_steps": STEPS, "local": 2}
    return weights_after(task, Config(train_dir=folder, tensorboard=False, threads=1, **{**known, **settings}))


def test_weights_are_those_of_plain_torch_on_the_dealt_examples(tmp_path: Path) -> None:
    task = Trains(DataLoader(Points()))  # these data have no dropout
    torch.manual_seed(SEED)
    model = task.model()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    points, samplers = Points(), [Sampler(EXAMPLES, worker, 2, BATCH, 1, SEED) for worker in (0, 1)]
    for step in range(1, STEPS + 1):
        chosen = [int(index) for sampler in samplers for index in sampler.indices(step)[0]]
        optimizer.zero_grad()
        functional.cross_entropy(model(points.x[chosen]), points.y[chosen]).backward()
        optimizer.step()
    found = trained(tmp_path, task)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.serial
def test_a_resumed_run_and_one_with_processes_are_the_same_to_the_bit(tmp_path: Path) -> None:
    """Check that a resumed run and a run with data processes equal an undisturbed run, with noise of the data and dropout of
    the model.
    """
    whole = trained(tmp_path / "whole", Trains(Points(0.3)))
    trained(tmp_path / "parts", Trains(Points(0.3)), max_steps=3)
    parts = trained(tmp_path / "parts", Trains(Points(0.3)), resume=True)
    processes = trained(tmp_path / "processes", Trains(Points(0.3)), data_workers=1)
    for name, weight in whole.items():
        assert torch.equal(parts[name], weight) and torch.equal(processes[name], weight), name


def test_an_iterable_trains_and_says_at_a_resume_that_it_begins_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(tmp_path, Trains(Stream(), steps=3), max_steps=3)
    assert "begins anew" not in capsys.readouterr().err
    trained(tmp_path, Trains(Stream(), steps=3), max_steps=6, resume=True)
    assert "begins anew" in capsys.readouterr().err


def test_the_blocks_of_the_page_are_tasks_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    datasets.Dataset.from_dict({"x": [[1.0, float(i)] for i in range(EXAMPLES)]}).save_to_disk("data/train")
    page = (Path(__file__).parents[1] / "docs" / "data.md").read_text()
    loader, steps = re.findall(r"```python\n(.*?)```", page, re.S)
    names: dict[str, Any] = {
        "Task": Trains,
        "DataLoader": DataLoader,
        "datasets": datasets,
        "padded": lambda examples: len(examples),
    }
    exec(loader, names)  # noqa: S102
    data = data_of(names["Mine"](None).train_data(), Config(batch_size=BATCH))
    assert len(data) == EXAMPLES and data.batch(np.arange(BATCH), None) == BATCH
    exec(steps, names)  # noqa: S102
    assert names["Mine"](None).steps_per_epoch == 1000
