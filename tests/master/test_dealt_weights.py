"""Weights dealt among the workers: every run equals the one whose weights are all on rank 0, to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from psnode import run
from psnode.config import Config
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import violations
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains

CENTRAL, DEALT = "star", "mesh"


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 24), nn.Tanh(), nn.BatchNorm1d(24), nn.Linear(24, 17), nn.Tanh(), nn.Linear(17, CLASSES)
    )


class Decays(Trains):
    """A task with parameter groups. `asked`: how often it was asked for them."""

    asked: ClassVar[int] = 0

    def parameter_groups(self, model: nn.Module) -> Any:
        Decays.asked += 1
        first, *others = model.parameters()
        return [{"params": [first], "lr": 0.02, "weight_decay": 0.1}, {"params": others}]


class Adapts(Trains):
    """A task with an optimizer of its own."""

    def optimizer(self, name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return torch.optim.Adagrad([parameter], lr=0.01)


def trained(folder: Path, steps: int, topology: str, settings: dict[str, Any], *, task: Any = Trains, **more: Any) -> Checkpoint:
    """Train with three workers. Return the last checkpoint."""
    known: dict[str, Any] = {"lr": 0.05, "seed": 3, "batch_size": 8, "local": 3, "tensorboard": False, "threads": 1}
    lossless = settings["scheme"] in ("dense", "fp16", "bf16", "blosc")
    known |= {"group_by": "layer", "hash_every": 2, "record_history": True, **({} if lossless else {"min_compress_bytes": 0})}
    known |= {**settings, **more}
    assert run(task(network, 80), Config(train_dir=folder, max_steps=steps, topology=topology, **known)) == 0
    newest = checkpoint.latest(folder)
    assert newest is not None
    assert violations(folder) == []
    return Checkpoint.open(newest)


def differences(one: Checkpoint, other: Checkpoint) -> list[str]:
    """Return the tensors in which two checkpoints differ, in all files but that of the norms of pushes."""
    assert one.facts["files"].keys() == other.facts["files"].keys()
    found = []
    for file in one.facts["files"].keys() - {checkpoint.NORMS}:
        tensors, others = one.tensors(file), other.tensors(file)
        assert tensors.keys() == others.keys()
        found += [f"{file}: {name}" for name, value in tensors.items() if not torch.equal(value, others[name])]
    return found


def model_hash(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["model_hash"])


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_the_same_checkpoint(tmp_path: Path, scheme: str) -> None:
    one = trained(tmp_path / "one", 4, CENTRAL, {"scheme": scheme, "lr": None})
    other = trained(tmp_path / "other", 4, DEALT, {"scheme": scheme, "lr": None})
    assert differences(one, other) == []
    assert model_hash(tmp_path / "one") == model_hash(tmp_path / "other")


ADAM = {"scheme": "qsgd", "optimizer": "adamw", "lr": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "clipped": {**ADAM, "clip_grad_norm": 0.5},
    "clipped by an estimate": {**ADAM, "clip_grad_norm": 0.5, "clip_estimate": "previous"},
    "averaged": {**ADAM, "ema_decay": 0.8},
    "in pieces": {"scheme": "polar-2bit", "group_by": "bytes", "group_bytes": 16384, "momentum": 0.9},
    "decayed": {"scheme": "dense", "weight_decay": 0.01, "no_decay": ("bias",), "optimizer": "radam"},
    "of whole tensors": {"scheme": "topk:ratio=0.1", "optimizer": "adafactor", "lr": 0.01},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("first", "then"), [(DEALT, DEALT), (CENTRAL, DEALT), (DEALT, CENTRAL)])
def test_a_resumed_run_may_have_another_topology(tmp_path: Path, settings: dict[str, Any], first: str, then: str) -> None:
    whole = trained(tmp_path / "whole", 6, CENTRAL, settings)
    trained(tmp_path / "parts", 3, first, settings)
    assert differences(whole, trained(tmp_path / "parts", 6, then, settings, resume=True)) == []


@pytest.mark.parametrize(("task", "optimizer"), [(Decays, "adamw"), (Adapts, "task")])
def test_parameter_groups_and_an_own_optimizer_are_those_of_the_task(tmp_path: Path, task: Any, optimizer: str) -> None:
    settings = {"scheme": "dense", "optimizer": optimizer, "lr": 0.01}
    one, other = (trained(tmp_path / each, 4, each, settings, task=task) for each in (CENTRAL, DEALT))
    assert differences(one, other) == []


def test_parameter_groups_are_asked_for_where_weights_are_updated_and_nowhere_else(tmp_path: Path) -> None:
    asked = {}
    for topology in (CENTRAL, DEALT):
        Decays.asked = 0
        trained(tmp_path / topology, 1, topology, {"scheme": "dense"}, task=Decays)
        asked[topology] = Decays.asked
    assert asked == {CENTRAL: 1, DEALT: 1 + 3}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_another_number_of_workers(tmp_path: Path, workers: int) -> None:
    """With five workers and three groups, some have no part of the weights."""
    one, other = (trained(tmp_path / each, 3, each, ADAM, local=workers) for each in (CENTRAL, DEALT))
    assert differences(one, other) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"consistency": "kofn", "num_aggregate": 2}, "--consistency"),
        ({"consistency": "asp"}, "--consistency"),
        ({"norm_cap": 10.0}, "--norm-cap"),
        ({"aggregator": "mean:clip=median"}, "--aggregator mean:clip=median"),
        ({"plan": "auto"}, "--plan auto"),
        ({"gpu_master": True, "enable_gpu": True}, "--gpu-master"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_need_one_place_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{named} .* under --topology mesh: use --topology star$"):
        trained(tmp_path / "run", 3, DEALT, {"scheme": "dense", **settings})
    assert not (tmp_path / "run" / "summary.json").exists()


class Constrained(Trains):
    """A task with a constraint."""

    def constrain(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.clamp_(-1, 1)


def test_a_constraint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^Task\.constrain changes all weights at once"):
        trained(tmp_path / "run", 3, DEALT, {"scheme": "dense"}, task=Constrained)
