"""The optimizer's state by tensor: equal to torch's, and the same under every plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.errors import CheckpointError
from psnode.exchange.update.parameters import Parameters
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan
from psnode.records import tensorfile
from tests.records.plain_reader import read

LR = 0.05
PLANS: dict[str, dict[str, Any]] = {
    "one group": {"group_by": "model"},
    "a group a layer": {"group_by": "layer"},
    "tensors cut over groups": {"group_by": "bytes", "group_bytes": 16384},
}
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"optimizer": "sgd"},
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
}


def network() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(100, 90), nn.Linear(90, 3))


def parameters(folder: Path, kind: str, plan: dict[str, Any]) -> Parameters:
    model = network()
    tensors = [Tensor(name, tuple(value.shape)) for name, value in reversed(list(model.named_parameters()))]
    made = make_plan(tensors, "qsgd", min_compress_bytes=0, **plan)
    named = dict(model.named_parameters())
    weights = torch.cat([named[tensor.name].detach().reshape(-1) for tensor in made.tensors])
    return Parameters(weights, made, Config(train_dir=folder, lr=LR, **OPTIMIZERS[kind]), 0.9)


def gradients(plan: Plan, step: int) -> np.ndarray:
    """Return the gradients of a step in the plan's order; by tensor they are the same for every plan."""
    drawn = {
        name: np.random.default_rng([step, index]).standard_normal(value.numel()).astype(np.float32)
        for index, (name, value) in enumerate(network().named_parameters())
    }
    return np.concatenate([drawn[tensor.name] for tensor in plan.tensors])


def step(found: Parameters, number: int, *, without: int | None = None) -> None:
    """Update all groups except `without`, as if its sum had not been finite."""
    total = gradients(found.plan, number)
    for group in found.plan.groups:
        if group.index != without:
            found.update(group.index, total[group.start : group.stop], 1.0, LR)


def written(found: Parameters, path: Path) -> dict[str, np.ndarray]:
    tensorfile.write_tensors(path, found.state())
    return read(path)


def by_name(found: Parameters) -> dict[str, torch.Tensor]:
    return {name: found.weights[where] for name, where in found.plan.slices().items()}


def load(found: Parameters, weights: dict[str, torch.Tensor], path: Path) -> None:
    for name, view in by_name(found).items():
        view.copy_(weights[name])
    found.load(tensorfile.parse(path.read_bytes(), "the file"))


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("plan", PLANS)
def test_the_memories_of_a_tensor_are_torchs_after_three_steps(tmp_path: Path, kind: str, plan: str) -> None:
    """Compare the memories with those of torch's optimizers, and SGD's buffer also with v = .9 v + g."""
    found = parameters(tmp_path, kind, PLANS[plan])
    model = network()
    settings: dict[str, Any] = {"lr": LR, "weight_decay": 0.1 if kind == "adamw" else 0.0, "foreach": False}
    torchs: torch.optim.Optimizer = {
        "sgd": lambda: torch.optim.SGD(model.parameters(), momentum=0.9, **settings),
        "adam": lambda: torch.optim.Adam(model.parameters(), betas=(0.9, 0.999), **settings),
        "adamw": lambda: torch.optim.AdamW(model.parameters(), betas=(0.9, 0.999), **settings),
    }[kind]()
    names = [tensor.name for tensor in found.plan.tensors]
    velocity = np.zeros(found.plan.size, np.float32)
    for number in (1, 2, 3):
        drawn = gradients(found.plan, number)
        velocity = np.float32(0.9) * velocity + drawn
        for name, parameter in model.named_parameters():
            parameter.grad = torch.from_numpy(drawn[found.plan.slices()[name]].copy()).view(parameter.shape)
        torchs.step()
        step(found, number)
    file = written(found, tmp_path / "optimizer")
    memories = {"sgd": ("momentum_buffer",)}.get(kind, ("exp_avg", "exp_avg_sq", "step"))
    assert file.keys() == {f"{memory}/{name}" for memory in memories for name in names}
    for name, parameter in model.named_parameters():
        for memory in memories:
            expected = torchs.state[parameter][memory].reshape(-1).numpy()
            np.testing.assert_array_equal(file[f"{memory}/{name}"], expected, err_msg=f"{memory} of {name}")
        if kind == "sgd":
            np.testing.assert_array_equal(file[f"momentum_buffer/{name}"], velocity[found.plan.slices()[name]])


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("first", PLANS)
def test_what_one_plan_wrote_and_another_read_and_wrote_is_the_same(tmp_path: Path, kind: str, first: str) -> None:
    """Check that a state written under one plan is unchanged after it was loaded and written under another. Groups have
    different numbers of updates: Adam continues with the count of every coordinate.
    """
    one = parameters(tmp_path, kind, PLANS[first])
    step(one, 1)
    step(one, 2, without=0)
    before = written(one, tmp_path / "first")
    weights = {name: value.clone() for name, value in by_name(one).items()}
    others = {name: parameters(tmp_path, kind, plan) for name, plan in PLANS.items()}
    for other in others.values():
        load(other, weights, tmp_path / "first")
        second = written(other, tmp_path / "second")
        again = parameters(tmp_path, kind, PLANS[first])
        load(again, weights, tmp_path / "second")
        third = written(again, tmp_path / "third")
        assert before.keys() == second.keys() == third.keys()
        for name, value in before.items():
            np.testing.assert_array_equal(second[name], value, err_msg=name)
            np.testing.assert_array_equal(third[name], value, err_msg=name)
    for other in (one, *others.values()):
        step(other, 3)
    for other in others.values():
        assert all(torch.equal(value, by_name(one)[name]) for name, value in by_name(other).items())


@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("sgd", {"momentum_buffer/0.weight": torch.zeros(5)}),
        ("sgd", {"momentum_buffer/0.weight": torch.zeros(90, 100)}),
        ("sgd", {"momentum_buffer/9.weight": torch.zeros(5)}),
        ("sgd", {"exp_avg/0.weight": torch.zeros(9000)}),
        ("sgd", {"step/0.weight": torch.ones(1)}),
        ("sgd", {"0/momentum_buffer": torch.zeros(9363)}),
        ("sgd", {"momentum_buffer/0.weight": None}),
        ("adam", {"step/0.bias": None}),
        ("adam", {"step/0.bias": torch.ones(7)}),
        ("adam", {"momentum_buffer/0.bias": torch.ones(90)}),
    ],
)
def test_memories_of_another_optimizer_or_network_are_refused(
    tmp_path: Path, kind: str, changed: dict[str, torch.Tensor | None]
) -> None:
    found = parameters(tmp_path, kind, PLANS["one group"])
    state = {name: value for name, value in {**found.state(), **changed}.items() if value is not None}
    with pytest.raises(CheckpointError, match="does not fit this run"):
        found.load(state)
