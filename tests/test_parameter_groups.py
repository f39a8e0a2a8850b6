"""Parameter groups: weights equal those of torch.optim with the same groups, whichever tensors travel together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import psnode
from psnode.config import Config
from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.flat_model import FlatModel
from psnode.exchange.update.parameters import Parameters
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan
from psnode.tasks.parameter_groups import groups_of
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains, torch_steps, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 9, 3, 0.2
Groups = list[dict[str, Any]]
SETTINGS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "weight_decay": 0.01},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adam": {"optimizer": "adam", "momentum": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1, "lr": 0.02},
    "adamw": {"optimizer": "adamw", "momentum": 0.8, "beta2": 0.9, "eps": 1e-3, "weight_decay": 0.1, "lr": 0.02},
}
PLANS: dict[str, dict[str, Any]] = {
    "one group": {"group_by": "model"},
    "a group a layer": {"group_by": "layer"},
    "tensors cut over groups": {"group_by": "bytes", "group_bytes": 16384},
}


class Net(nn.Module):
    """A network with layers of the kinds that no-decay distinguishes."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.inner, self.norm, self.head = nn.Linear(WIDTH, width), nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.tanh(self.norm(self.inner(x))))
        return out


def by_kind(model: Any, settings: dict[str, Any]) -> Groups:
    """Return torch.optim groups: norms and biases without decay, and a head with a higher rate and less momentum."""
    own: dict[str, Any] = {"momentum": 0.5} if "optimizer" not in settings else {"betas": (0.5, 0.95), "eps": 1e-2}
    return [
        {"params": [model.inner.weight]},
        {"params": [model.norm.weight, model.norm.bias, model.inner.bias, model.head.bias], "weight_decay": 0.0},
        {"params": model.head.weight, "lr": 3 * settings.get("lr", LR), **own},
    ]


class Grouped(Trains):
    """Trains Net with the parameter groups that a function returns."""

    def __init__(self, groups: Callable[[Any], Groups], examples: int = EXAMPLES) -> None:
        super().__init__(Net, examples)
        self._groups = groups

    def parameter_groups(self, model: nn.Module) -> Groups:
        return self._groups(model)


def torchs(groups: Groups, settings: dict[str, Any]) -> torch.optim.Optimizer:
    lr, momentum, decay = settings.get("lr", LR), settings["momentum"], settings["weight_decay"]
    if "optimizer" not in settings:
        return torch.optim.SGD(groups, lr, momentum=momentum, weight_decay=decay, nesterov=settings.get("nesterov", False))
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings["optimizer"]]
    return kind(groups, lr, betas=(momentum, settings["beta2"]), eps=settings["eps"], weight_decay=decay, foreach=False)


def by_torch(settings: dict[str, Any], groups: Callable[[Any], Groups], decay_of_rate: float = 1.0) -> dict[str, torch.Tensor]:
    """Train in plain PyTorch on the joined batch, and return the weights."""
    torch.manual_seed(SEED)
    model = Net()
    optimizer = torchs(groups(model), settings)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay_of_rate)
    return torch_steps(model, optimizer, EXAMPLES, STEPS, schedule.step)


def trained(folder: Path, task: psnode.Task, **settings: Any) -> dict[str, torch.Tensor]:
    """Return the weights after training with two workers, each of which has half of the examples."""
    known = {"scheme": "dense", "lr": LR, "seed": SEED, "batch_size": EXAMPLES // 2, "max_steps": STEPS, "local": 2}
    known |= {"group_by": "layer", "tensorboard": False, "threads": 1, **settings}
    return weights_after(task, Config(train_dir=folder, **known))


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("plan", PLANS)
def test_updates_are_torchs_whatever_travels_together(kind: str, plan: str) -> None:
    """Compare the updates and states of the optimizers with torch's, on given gradients.

    SGD agrees with torch bit for bit; Adam's square root is rounded differently (psnode.exchange.update.adam).
    """
    settings = SETTINGS[kind]
    torch.manual_seed(SEED)
    ours, theirs = Net(1100), Net(1100)
    theirs.load_state_dict(ours.state_dict())
    optimizer = torchs(by_kind(theirs, settings), settings)
    config = Config(**{"lr": LR, **settings})
    groups = groups_of(by_kind(ours, settings), ours, config)
    tensors = [Tensor(name, tuple(value.shape)) for name, value in reversed(list(ours.named_parameters()))]
    made = make_plan(tensors, "qsgd", min_compress_bytes=0, **PLANS[plan])
    assert len(made.groups) == {"one group": 1, "a group a layer": 3}.get(plan, len(made.groups))
    assert len(made.groups) > 2 or plan == "one group"
    x = FlatModel(ours, made, torch.empty(made.size)).vector
    found = Parameters(x, made, config, config.momentum or 0.0, parameter_groups=groups)
    slices, named = made.slices(), dict(theirs.named_parameters())
    for step in range(3):
        total = np.random.default_rng(step).standard_normal(made.size).astype(np.float32)
        for name, where in slices.items():
            named[name].grad = torch.from_numpy(total[where].copy()).view(named[name].shape)
        optimizer.step()
        for group in made.groups:
            found.update(group.index, total[group.start : group.stop], 1.0, config.lr or 0.0)
    memories = ("momentum_buffer",) if "optimizer" not in settings else ("exp_avg", "exp_avg_sq")
    state = found.state()
    near = {"rtol": 0.0, "atol": 0.0} if "optimizer" not in settings else {"rtol": 2.0**-20, "atol": 2.0**-22}
    for name, parameter in ours.named_parameters():
        torch.testing.assert_close(parameter, named[name], **near, msg=lambda text, name=name: f"{name}: {text}")
        for memory in memories:
            expected = optimizer.state[named[name]][memory].reshape(-1)
            torch.testing.assert_close(state[f"{memory}/{name}"], expected, **near, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_run_with_groups_ends_with_torchs_weights(kind: str, tmp_path: Path) -> None:
    """Check that a run with parameter groups ends with torch's weights under a schedule that multiplies the learning rates
    of all groups, as torch's schedulers do.
    """
    settings = SETTINGS[kind]
    task = Grouped(lambda model: by_kind(model, settings))
    found = trained(tmp_path, task, lr_schedule="shrink", lr_shrinkage=0.9, **settings)
    for name, weight in by_torch(settings, lambda model: by_kind(model, settings), 0.9).items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    without = trained(tmp_path / "without", Trains(Net, EXAMPLES), lr_schedule="shrink", lr_shrinkage=0.9, **settings)
    assert not torch.allclose(found["head.weight"], without["head.weight"], atol=1e-3)


@pytest.mark.parametrize("kind", ["sgd", "adamw"])
def test_no_decay_spares_norms_and_biases(kind: str, tmp_path: Path) -> None:
    settings = SETTINGS[kind] | {"weight_decay": 0.3}

    def groups(model: Any) -> Groups:
        rest = [model.norm.weight, model.norm.bias, model.inner.bias, model.head.bias]
        return [{"params": [model.inner.weight, model.head.weight]}, {"params": rest, "weight_decay": 0.0}]

    found = trained(tmp_path, Trains(Net, EXAMPLES), no_decay=("norm", "bias"), **settings)
    for name, weight in by_torch(settings, groups).items():
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("kind", ["nesterov", "adamw"])
def test_a_coded_run_with_groups_is_the_same_to_the_bit_where_it_is_resumed(kind: str, tmp_path: Path) -> None:
    """Check that a resumed run with parameter groups is equal bit for bit under error feedback, whose memories are in units
    of weights.
    """
    settings: dict[str, Any] = SETTINGS[kind] | {"scheme": "topk:ratio=0.1", "min_compress_bytes": 0, "lr": 0.02}
    task = Grouped(lambda model: by_kind(model, settings))
    whole = trained(tmp_path / "whole", task, **settings)
    trained(tmp_path / "parts", task, **{**settings, "max_steps": 4})
    parts = trained(tmp_path / "parts", task, resume=True, **settings)
    for name, weight in whole.items():
        assert torch.equal(parts[name], weight), name


def test_a_run_is_not_resumed_with_other_groups(tmp_path: Path) -> None:
    settings = SETTINGS["sgd"]
    names = [["inner.weight", "head.weight"], ["inner.bias", "norm.weight", "norm.bias", "head.bias"]]

    def groups(decay: float, order: int = 1) -> Callable[[Any], Groups]:
        return lambda model: [{"params": names[0]}, {"params": names[1], "weight_decay": decay}][::order]

    trained(tmp_path, Grouped(groups(0.0)), max_steps=2, **settings)
    assert json.loads((tmp_path / "config.json").read_bytes())["parameter_groups"] == [
        {"params": names[0], "lr_factor": 1.0},
        {"params": names[1], "lr_factor": 1.0, "weight_decay": 0.0},
    ]
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(ConfigurationError, match=r"head.bias had weight_decay 0 in it and has weight_decay 0.5 now"):
        trained(tmp_path, Grouped(groups(0.5)), resume=True, **settings)
    with pytest.raises(ConfigurationError, match=r"head.bias had weight_decay 0 in it and has the settings of all now"):
        trained(tmp_path, Grouped(lambda model: []), resume=True, **settings)
    assert (tmp_path / "config.json").read_bytes() == before
    trained(tmp_path, Grouped(groups(0.0, -1)), resume=True, **settings)


def test_a_run_without_groups_is_not_resumed_with_some(tmp_path: Path) -> None:
    trained(tmp_path, Grouped(lambda model: []), max_steps=2, **SETTINGS["sgd"])
    with pytest.raises(ConfigurationError, match=r"head.bias had the settings of all in it"):
        trained(tmp_path, Grouped(lambda model: by_kind(model, SETTINGS["sgd"])), resume=True, **SETTINGS["sgd"])


@pytest.mark.parametrize(
    "altered", [3, [3], [{"lr_factor": 1.0}], [{"params": 3}], [{"params": [["a"]]}], [{"params": [], "eps": "x"}]]
)
def test_a_record_that_somebody_altered_is_refused_in_a_line(altered: Any, tmp_path: Path) -> None:
    task = Grouped(lambda model: by_kind(model, SETTINGS["sgd"]))
    trained(tmp_path, task, max_steps=1, **SETTINGS["sgd"])
    record = tmp_path / "config.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "parameter_groups": altered}))
    with pytest.raises(CheckpointError, match=r"config.json cannot be used \(its parameter_groups are"):
        trained(tmp_path, task, resume=True, **SETTINGS["sgd"])


def refusals() -> Iterator[tuple[str, Callable[[Any], Any], dict[str, Any], str]]:
    def all_with(**settings: Any) -> Callable[[Any], Any]:
        return lambda model: [{"params": model.parameters(), **settings}]

    yield "left out", lambda model: [{"params": [model.head.weight]}], {}, "inner.weight is in no parameter group"
    yield "twice", lambda model: [{"params": model.parameters()}, {"params": ["head.bias"]}], {}, "head.bias is in two"
    yield "no params", lambda model: [{"lr": 0.1}], {}, 'a dictionary with "params"'
    yield "a list", lambda model: [list(model.parameters())], {}, 'a dictionary with "params"'
    yield "a foreign name", lambda model: [{"params": ["head.wieght"]}], {}, "did you mean head.weight"
    yield "a foreign parameter", lambda model: [{"params": [nn.Parameter(torch.ones(1))]}], {}, "neither a parameter of the model"
    yield "unknown", all_with(wd=0.1), {}, "parameter group 0 has no setting 'wd'"
    yield "a negative rate", all_with(lr=-0.1), {}, "parameter group 0: --lr must be a number above 0"
    yield "two rates", all_with(lr=0.1, lr_factor=2.0), {}, "lr and lr_factor both"
    yield "one beta", all_with(betas=0.9), {"optimizer": "adam"}, "parameter group 0: betas must be two numbers, not 0.9"
    yield "nothing returned", lambda model: None, {}, "Task.parameter_groups returned None"
    yield "Adam's own", all_with(beta2=0.9), {}, "--beta2 needs --optimizer adam or adamw"
    yield "nesterov alone", all_with(nesterov=True, momentum=0.0), {}, "--nesterov needs --momentum above 0"
    yield "decay of votes", all_with(weight_decay=0.1), {"scheme": "signsgd"}, "a majority vote takes neither"
    yield "two momenta", all_with(momentum=0.5), {"scheme": "dgc"}, "would be added to that of feedback dgc"
    yield "beside the flag", all_with(), {"no_decay": ("bias",), "weight_decay": 0.1}, "--no-decay and the task's"


@pytest.mark.parametrize(("groups", "settings", "message"), [row[1:] for row in refusals()], ids=[row[0] for row in refusals()])
def test_groups_that_mean_nothing_are_refused(groups: Callable[[Any], Any], settings: dict[str, Any], message: str) -> None:
    model = Net()
    with pytest.raises(ConfigurationError, match=message):
        groups_of(groups(model), model, Config(**{"lr": LR, "scheme": "dense", **settings}))


def test_no_decay_means_what_its_words_say() -> None:
    class RMSLikeNorm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(2, 2))

    model = nn.ModuleDict({"embed": nn.Embedding(5, 4), "own": RMSLikeNorm(), "batch": nn.BatchNorm1d(4), "rnn": nn.LSTM(4, 4)})
    model["frozen"] = nn.Linear(2, 2).requires_grad_(False)
    config = Config(lr=LR, weight_decay=0.1)
    expected = {
        "norm": {"own.scale", "batch.weight", "batch.bias"},
        "bias": {"batch.bias", "rnn.bias_ih_l0", "rnn.bias_hh_l0"},
        "embedding": {"embed.weight"},
        "1d": {"batch.weight", "batch.bias", "rnn.bias_ih_l0", "rnn.bias_hh_l0"},
    }
    for word, names in expected.items():
        rest, without = groups_of([], model, replace(config, no_decay=(word,)))
        assert (set(without.names), without.settings) == (names, {"weight_decay": 0.0})
        assert not rest.settings
        assert set(rest.names) | names == {name for name, value in model.named_parameters() if value.requires_grad}
    with pytest.raises(ConfigurationError, match="--no-decay embedding names nothing that the model trains: leave it out"):
        groups_of([], Net(), replace(config, no_decay=("embedding",)))
    with pytest.raises(ConfigurationError, match="--no-decay needs --weight-decay above 0: drop one of the two"):
        Config(no_decay=("norm",)).validate()
