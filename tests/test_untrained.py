"""Frozen parameters and buffers of all types beside the trained weights, in whole runs in one process."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.errors import ConfigurationError, PsnodeError
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.history import HISTORY, violations
from psnode.task import Task


class Numbers:
    """Sixty examples of four numbers, without targets."""

    def __len__(self) -> int:
        return 60

    def batch(self, indices: np.ndarray, rng: np.random.Generator | None) -> torch.Tensor:
        return torch.from_numpy(np.stack([np.cos(np.arange(4) * (index + 1)) for index in indices]).astype(np.float32))


class Regression(Task):
    """Trains the model of `build` to output the sum of its input, and keeps every model that was built."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self._build = build
        self.models: list[nn.Module] = []

    def model(self) -> nn.Module:
        self.models.append(self._build())
        return self.models[-1]

    def train_data(self) -> Numbers:
        return Numbers()

    eval_data = train_data

    def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = model(batch)
        return (found.sum(1) - batch.sum(1)).square().mean(), found

    def size(self, batch: torch.Tensor) -> int:
        return len(batch)


class Adapted(nn.Module):
    """A frozen base in bfloat16 with a float32 adapter, and buffers of many types."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.adapter = nn.Linear(4, 4), nn.Linear(4, 4)
        self.base.to(torch.bfloat16).requires_grad_(False)
        self.register_buffer("rotary", torch.polar(torch.ones(4), torch.arange(4.0)))
        self.register_buffer("exact", torch.polar(torch.ones(4, dtype=torch.float64), torch.arange(4.0, dtype=torch.float64)))
        self.register_buffer("table", torch.tensor([3, -7, 2**40]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scale", torch.full((3,), 0.1))  # the float32 mean of three copies differs from 0.1
        self.register_buffer("coarse", torch.full((2,), 0.3, dtype=torch.bfloat16))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return self.base(x.to(torch.bfloat16)).float() + self.adapter(x)


def trained(task: Task, train_dir: Path, **changed: Any) -> dict[str, torch.Tensor]:
    """Return the model in the last checkpoint of a run that succeeded."""
    settings: dict[str, Any] = {"scheme": "dense", "batch_size": 4, "max_steps": 4, "eval_freq": 2, "local": 3, "lr": 0.02}
    settings |= {"threads": 1, "tensorboard": False, "hash_every": 1, "pause_deadline": 600.0, **changed}
    assert run(Config(train_dir=train_dir, **settings), task=task) == 0
    newest = checkpoint.latest(train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return found.dtype == expected.dtype and torch.equal(found, expected)


def test_a_base_in_half_precision_and_buffers_of_any_type_come_out_as_they_are(tmp_path: Path) -> None:
    task = Regression(Adapted)
    found = trained(task, tmp_path)
    torch.manual_seed(1)
    expected = Adapted().state_dict()
    assert found.keys() == expected.keys()
    for name in ("base.weight", "base.bias", "rotary", "exact", "table", "mask", "scale", "coarse"):
        assert same(found[name], expected[name]), name
    assert same(found["passes"], torch.tensor(4))
    assert not torch.equal(found["adapter.weight"], expected["adapter.weight"])
    resumed = trained(task, tmp_path, max_steps=6, resume=True)
    whole = trained(Regression(Adapted), tmp_path / "whole", max_steps=6)
    assert all(same(resumed[name], value) for name, value in whole.items())


def test_the_history_of_a_run_with_a_base_in_half_precision_can_be_checked(tmp_path: Path) -> None:
    trained(Regression(Adapted), tmp_path, record_history=True, local=2, max_steps=2)
    assert violations(tmp_path) == []
    lines = [json.loads(line) for line in (tmp_path / HISTORY).read_text().splitlines()]
    lines[-1]["hash"] = "0"
    (tmp_path / HISTORY).write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [lie for lie in violations(tmp_path) if "does not hold the weights" in lie]


class Drawn(nn.Module):
    """A model that does not depend on the seed, with batch norm, frozen weights, and a buffer that checkpoints do not hold."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 4)
        self.register_buffer("scale", torch.ones(8))
        self.register_buffer("shift", torch.ones(8), persistent=False)
        entropy = np.random.default_rng()
        for value in (*self.parameters(), self.scale, self.shift, self.norm.running_mean):
            value.data.copy_(torch.from_numpy(entropy.standard_normal(tuple(value.shape))))
        self.base.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.norm(self.base(x) * self.scale + self.shift))
        return found


def test_everybody_begins_with_what_rank_0_has(tmp_path: Path) -> None:
    task = Regression(Drawn)
    found = trained(task, tmp_path)
    master, *workers = [model.state_dict() for model in task.models]
    assert len(workers) == 3
    for model in workers:
        for name in ("base.weight", "base.bias", "scale"):
            assert same(model[name], master[name]) and same(found[name], master[name]), name
        assert same(model["last.weight"], found["last.weight"])
    shifts = [model.shift for model in task.models]
    assert all(same(shift, shifts[0]) for shift in shifts)  # type: ignore[arg-type]
    mean = torch.stack([model["norm.running_mean"] for model in workers]).mean(0)
    torch.testing.assert_close(found["norm.running_mean"], mean)  # models are built in any order, but summed by rank


def test_weights_are_not_sent_to_those_who_have_them(tmp_path: Path) -> None:
    build = lambda: nn.Sequential(nn.Linear(4, 3000), nn.Linear(3000, 4))  # noqa: E731
    trained(Regression(build), tmp_path, max_steps=3)
    weights = 4 * sum(parameter.numel() for parameter in build().parameters())
    sent = json.loads((tmp_path / "summary.json").read_bytes())["downlink_bytes"]
    assert 3 * 3 * weights < sent < 3 * 3.1 * weights  # three workers, three versions; nothing is sent at the start


class Running(nn.Module):
    """A model with a running mean that does not belong to a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("most", torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.5)
        self.most.copy_(torch.maximum(self.most, x.detach().amax(0)))
        found: torch.Tensor = self.last(x - self.mean)
        return found


class Declared(Regression):
    def statistics(self, model: nn.Module) -> dict[str, str]:
        return {**super().statistics(model), "mean": "mean", "most": "max"}


def test_a_buffer_that_follows_the_data_is_refused_unless_its_rule_is_said(tmp_path: Path) -> None:
    with pytest.raises(PsnodeError, match=r"buffer m\w+ takes another value with every batch.*Task\.statistics"):
        trained(Regression(Running), tmp_path / "refused")
    assert not (tmp_path / "refused" / "checkpoints").exists()
    task = Declared(Running)
    found = trained(task, tmp_path / "declared")
    workers = [model.state_dict() for model in task.models[1:]]
    torch.testing.assert_close(found["mean"], torch.stack([model["mean"] for model in workers]).mean(0))
    assert same(found["most"], torch.stack([model["most"] for model in workers]).amax(0))
    assert not torch.equal(workers[0]["mean"], workers[1]["mean"])


class Stateful(nn.Linear):
    def get_extra_state(self) -> dict[str, int]:
        return {"calls": 1}

    def set_extra_state(self, state: object) -> None: ...


class Unfinished(nn.Linear):
    """A layer with an unused parameter and a buffer, both of which contain `value`."""

    def __init__(self, value: float, *, trained: bool = True) -> None:
        super().__init__(4, 4)
        self.unused = nn.Parameter(torch.tensor([1.0, 2.0, value, value]), requires_grad=trained)
        self.register_buffer("mask", torch.tensor([0.0, value]))


@pytest.mark.parametrize("downlink", ["dense", "topk:ratio=0.5"])
def test_frozen_parameters_and_buffers_need_not_be_finite(downlink: str, tmp_path: Path) -> None:
    found = trained(Regression(lambda: Unfinished(float("nan"), trained=False)), tmp_path / "run", downlink=downlink)
    before = Unfinished(float("nan"), trained=False).state_dict()
    for name in ("unused", "mask"):
        torch.testing.assert_close(found[name], before[name], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: nn.LazyLinear(4), "weight has no shape yet.*Task.model"),
        (lambda: Stateful(4, 4), "_extra_state is not a tensor"),
        (lambda: nn.Linear(4, 4).double(), "float64"),
        (lambda: Unfinished(float("nan")), r"parameter unused holds nan.*requires_grad"),
        (lambda: Unfinished(float("-inf")), r"parameter unused holds -inf.*requires_grad"),
    ],
)
def test_what_can_be_neither_exchanged_nor_saved_is_refused_before_the_start(
    build: Callable[[], nn.Module], said: str, tmp_path: Path
) -> None:
    with pytest.raises(PsnodeError, match=said) as caught:
        trained(Regression(build), tmp_path / "run")
    assert caught.value.exit_code == ConfigurationError.exit_code
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "checkpoints").exists()


class Now(nn.Module):
    """A model with a weight used in every pass, a weight used in every second pass, and an unused weight."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes, self.never = (nn.Parameter(torch.arange(1.0, 4.0).repeat(40, 10)) for _ in range(3))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        found = self.always.square() + 0 * x.sum()
        return found + self.sometimes.square() if self.passes % 2 else found


class Alone(Regression):
    """A task whose loss depends only on the weights."""

    def loss(self, model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = model(batch)
        return found.mean(), found


TORCHS = [
    ({"optimizer": "sgd", "momentum": 0.0}, lambda p: torch.optim.SGD(p, 0.1, 0.0, weight_decay=0.1)),
    ({"optimizer": "sgd"}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1)),
    ({"optimizer": "sgd", "nesterov": True}, lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=0.1, nesterov=True)),
    ({"optimizer": "adamw"}, lambda p: torch.optim.AdamW(p, 0.1, weight_decay=0.1)),
    ({"optimizer": "adam"}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.1)),
]


@pytest.mark.parametrize(
    ("chosen", "torchs"), TORCHS, ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else ""
)
@pytest.mark.parametrize("group_by", ["layer", "model"])
def test_weight_decay_and_momentum_leave_alone_what_has_no_gradient(
    chosen: dict[str, Any], torchs: Callable[[Any], torch.optim.Optimizer], group_by: str, tmp_path: Path
) -> None:
    """Compare the weights with torch's. Adam counts steps per group here, so only parameters used in every pass or in no
    pass agree.
    """
    settings = {"local": 2, "lr": 0.1, "weight_decay": 0.1, "max_steps": 5, "group_by": group_by, **chosen}
    found = trained(Alone(Now), tmp_path, **settings)
    model = Now()
    optimizer = torchs(model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.zeros(1)).mean().backward()
        optimizer.step()
    expected = model.state_dict()
    assert same(found["never"], Now().never.detach())
    for name in ("always", *(("sometimes",) if chosen["optimizer"] == "sgd" else ())):
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)
    assert not torch.equal(found["sometimes"], Now().sometimes)


@pytest.mark.parametrize("scheme", ["qsgd", "topk", "signsgd", "terngrad"])
def test_nothing_that_coding_makes_of_zeros_moves_a_weight_that_is_never_used(scheme: str, tmp_path: Path) -> None:
    found = trained(Alone(Now), tmp_path, scheme=scheme, local=2, min_compress_bytes=0, max_steps=6)
    assert same(found["never"], Now().never.detach())


class Thawing(nn.Module):
    """A model that freezes or unfreezes a layer in its third training pass."""

    def __init__(self, frozen: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first.requires_grad_(not frozen)
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.passes == 3:
            self.first.requires_grad_(not self.first.weight.requires_grad)
        found: torch.Tensor = self.last(self.first(x))
        return found


@pytest.mark.parametrize("frozen", [True, False])
def test_freezing_and_unfreezing_in_mid_run_is_refused(frozen: bool, tmp_path: Path) -> None:
    said = f"parameter first.weight was {'unfrozen' if frozen else 'frozen'} before the backward pass of step 3"
    with pytest.raises(PsnodeError, match=said) as caught:
        trained(Regression(lambda: Thawing(frozen)), tmp_path)
    assert caught.value.exit_code == ConfigurationError.exit_code
