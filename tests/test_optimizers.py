"""torch's optimizers by name and the task's own: updates equal torch's bit for bit, also after a resume or with another plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from psnode.config import Config, settings
from psnode.config.resolve import resolve
from psnode.errors import CheckpointError, ConfigurationError
from psnode.exchange.update.parameters import Parameters
from psnode.jobs.sessions import session
from psnode.plans.groups import Plan, Tensor
from psnode.plans.rule import make_plan
from psnode.records import state_names, tensorfile
from psnode.tasks.optimizers import require_optimizer
from psnode.tasks.own_loop import OwnLoop
from psnode.transport.mpi.environment import WorldRank
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Points, Trains, loss_of, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 8, 3, 0.02
Make = Callable[[str, nn.Parameter], torch.optim.Optimizer]
PLANS: dict[str, dict[str, Any]] = {
    "one group": {"group_by": "model"},
    "a group a layer": {"group_by": "layer"},
    "groups of 16 kB": {"group_by": "bytes", "group_bytes": 16384},
}


def net(width: int = 24) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, width), nn.Tanh(), nn.Linear(width, CLASSES))


class Counting(torch.optim.Optimizer):
    """An optimizer whose state has a tensor of another shape, numbers of every type, and the gradient itself."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "seen": 0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            group["seen"] += 1
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["norms"] = state.get("norms", 0.0) + float(parameter.grad.norm())
                state["odd"] = not state.get("odd", False)
                state["rows"] = state.get("rows", 0) + parameter.grad.reshape(len(parameter), -1).sum(1)
                state["last"], before = parameter.grad, state.get("last", parameter.grad)
                scale = group["lr"] / (state["count"] * group["seen"] * (2 if state["odd"] else 1) + state["norms"])
                parameter -= scale * (state["rows"].sum() + before + parameter.grad)


def muon_and_adamw(name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
    """Return the usual combination: Muon for matrices, AdamW with its own learning rate for the rest."""
    if parameter.dim() == 2:
        return torch.optim.Muon([parameter], lr=3 * LR)
    return torch.optim.AdamW([parameter], lr=LR / 2, foreach=False)


# settings of psnode, torch's class and the same settings for torch, by name
BY_NAME: Mapping[str, tuple[dict[str, Any], type[torch.optim.Optimizer], dict[str, Any]]] = {
    "adam": ({"optimizer_option": ("amsgrad=true",)}, torch.optim.Adam, {"betas": (0.9, 0.999), "amsgrad": True}),
    "nadam": ({"weight_decay": 0.1, "beta2": 0.9}, torch.optim.NAdam, {"betas": (0.9, 0.9), "weight_decay": 0.1}),
    "radam": ({"momentum": 0.5}, torch.optim.RAdam, {"betas": (0.5, 0.999)}),
    "adamax": ({"eps": 0.01}, torch.optim.Adamax, {"betas": (0.9, 0.999), "eps": 0.01}),
    "rmsprop": (
        {"optimizer_option": ("alpha=0.9", "centered=true"), "momentum": 0.8},
        torch.optim.RMSprop,
        {"alpha": 0.9, "centered": True, "momentum": 0.8},
    ),
    "adagrad": (
        {"optimizer_option": ("initial_accumulator_value=0.5", "lr_decay=0.1")},
        torch.optim.Adagrad,
        {"initial_accumulator_value": 0.5, "lr_decay": 0.1},
    ),
    "adadelta": ({"optimizer_option": ("rho=0.8",)}, torch.optim.Adadelta, {"rho": 0.8}),
    "adafactor": (
        {"optimizer_option": ("eps=none/0.01",), "weight_decay": 0.1},
        torch.optim.Adafactor,
        {"weight_decay": 0.1, "eps": (None, 0.01)},
    ),
    "asgd": ({"optimizer_option": ("t0=2",)}, torch.optim.ASGD, {"t0": 2}),
    "rprop": ({"optimizer_option": ("etas=0.4/1.3",)}, torch.optim.Rprop, {"etas": (0.4, 1.3)}),
}
OWN: Mapping[str, Make] = {
    "muon and adamw": muon_and_adamw,
    "one of its own": lambda name, parameter: Counting([parameter], 0.1 if "weight" in name else 0.05),
}
KINDS = (*BY_NAME, *OWN)


def asked(kind: str) -> dict[str, Any]:
    return {"optimizer": "task"} if kind in OWN else {"optimizer": kind, **BY_NAME[kind][0]}


def torchs(kind: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    if kind in OWN:
        return [OWN[kind](name, parameter) for name, parameter in model.named_parameters()]
    _, make, arguments = BY_NAME[kind]
    return [make(model.parameters(), lr=LR, foreach=False, **arguments)]  # type: ignore[call-arg]


def parameters(kind: str, plan: str) -> Parameters:
    torch.manual_seed(SEED)
    model, config = net(1100), Config(lr=LR, **asked(kind))
    tensors = [Tensor(name, tuple(value.shape)) for name, value in reversed(list(model.named_parameters()))]
    made = make_plan(tensors, "qsgd", min_compress_bytes=0, whole_tensors=config.whole_tensors, **PLANS[plan])
    momentum = 0.9 if config.momentum is None else config.momentum
    return Parameters(flat(model, made), made, config, momentum, own_optimizer=OWN.get(kind))


def flat(model: nn.Module, plan: Plan) -> torch.Tensor:
    named = dict(model.named_parameters())
    return torch.cat([named[tensor.name].detach().reshape(-1) for tensor in plan.tensors])


def by_name(found: Parameters) -> dict[str, torch.Tensor]:
    return {name: found.weights[where] for name, where in found.plan.slices().items()}


def step(found: Parameters, number: int, rate: float = LR, without: str = "") -> dict[str, torch.Tensor]:
    """Update all groups, and return the gradients by tensor. The group of tensor `without` gets no gradient."""
    total, given = np.zeros(found.plan.size, np.float32), {}
    for index, (name, where) in enumerate(sorted(found.plan.slices().items())):
        drawn = np.random.default_rng([number, index]).standard_normal(where.stop - where.start).astype(np.float32)
        total[where], given[name] = drawn, torch.from_numpy(drawn)
    for group, inside in zip(found.plan.groups, state_names.overlaps(found.plan, found.plan.groups), strict=True):
        idle = [slice(where.start - group.start, where.stop - group.start) for name, where in inside.items() if name == without]
        found.update(group.index, total[group.start : group.stop], 0.5, rate, idle)
    assert not total.any()
    return {name: 0.5 * value for name, value in given.items() if name != without}


@pytest.mark.parametrize("kind", KINDS)
def test_updates_are_torchs_to_the_bit_under_every_plan_and_behind_a_checkpoint(kind: str) -> None:
    """Check that updates equal torch's under every plan and after a checkpoint, also with a halved learning rate: torch's
    schedulers halve the rate of every parameter group.
    """
    torch.manual_seed(SEED)
    theirs = net(1100)
    optimizers, named = torchs(kind, theirs), dict(theirs.named_parameters())
    found = {plan: parameters(kind, plan) for plan in PLANS}
    assert len({len(each.plan.groups) for each in found.values()}) > 1
    for number in range(4):
        given: dict[str, torch.Tensor] = {}
        for each in found.values():
            given = step(each, number, LR * 0.5**number)
        for name, value in given.items():
            named[name].grad = value.view(named[name].shape)
        for optimizer in optimizers:
            optimizer.step()
            for group in optimizer.param_groups:
                group["lr"] *= 0.5
        for plan, each in found.items():
            for name, value in by_name(each).items():
                assert torch.equal(value, named[name].detach().reshape(-1)), f"{name} under {plan} after step {number}"
        if number == 1:
            states = {plan: tensorfile.parse(tensorfile.dump(each.state()), "the file") for plan, each in found.items()}
            found = {plan: parameters(kind, plan) for plan in PLANS}
            for each, (_, state) in zip(found.values(), reversed(states.items()), strict=True):
                each.weights.copy_(flat(theirs, each.plan))
                each.load(state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_tensor_without_a_gradient_stays_with_its_memories(kind: str) -> None:
    found = parameters(kind, "one group")
    step(found, 0)
    before = {key: value.clone() for key, value in found.state().items()}
    weights = {name: value.clone() for name, value in by_name(found).items()}
    step(found, 1, without="0.weight")
    assert [name for name, value in by_name(found).items() if torch.equal(value, weights[name])] == ["0.weight"]
    vectors = {key: value for key, value in found.state().items() if key.endswith("/0.weight") and value.numel() > 1}
    assert vectors
    assert all(torch.equal(value, before[key]) for key, value in vectors.items())


@pytest.mark.parametrize("name", PLANS)
def test_groups_end_at_tensors_for_optimizers_that_need_them_whole(name: str) -> None:
    tensors = [Tensor("a", (90, 100)), Tensor("b", (7,)), Tensor("c", (300, 100)), Tensor("d", (3,))]
    for codec in ("qsgd", "topk:ratio=0.1", "svd:rank=2", "identity"):
        plan = make_plan(tensors, codec, whole_tensors=True, min_compress_bytes=0, **PLANS[name])
        places = state_names.places(plan)
        for inside in state_names.overlaps(plan, plan.groups):
            assert all(where == places[tensor] for tensor, where in inside.items())
    assert any(
        len(inside) == 1 and where != state_names.places(cut)[tensor]
        for cut in [make_plan(tensors, "qsgd", min_compress_bytes=0, **PLANS["groups of 16 kB"])]
        for inside in state_names.overlaps(cut, cut.groups)
        for tensor, where in inside.items()
    )


def test_every_optimizer_of_torch_has_a_name_or_a_reason() -> None:
    reasons = {
        "Optimizer": "is their base",
        "LBFGS": "evaluates the loss several times in a step",
        "SparseAdam": "is for sparse gradients, which are refused",
        "Muon": "takes matrices alone: Task.optimizer gives it those",
    }
    known = {name.casefold() for name in (*settings()["optimizer"].rules.choices, *reasons)}
    there = {name for name, value in vars(torch.optim).items() if isinstance(value, type)}
    assert {name.casefold() for name in there} == known - {"task"}


class Optimised(Trains):
    """Trains a network with the task's own optimizers."""

    def __init__(self, make: Make) -> None:
        super().__init__(net, EXAMPLES)
        self._make_own = make

    def optimizer(self, name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
        return self._make_own(name, parameter)


def trained(folder: Path, kind: str, **changed: Any) -> dict[str, torch.Tensor]:
    known = {"scheme": "dense", "lr": LR, "seed": SEED, "batch_size": EXAMPLES // 2, "max_steps": STEPS, "local": 2}
    known |= {"tensorboard": False, "threads": 1, "group_by": "layer", "eval_freq": 3, **asked(kind), **changed}
    task = Optimised(OWN[kind]) if kind in OWN else Trains(net, EXAMPLES)
    return weights_after(task, Config(train_dir=folder, **known))


@pytest.mark.parametrize("kind", ["nadam", "adafactor", "muon and adamw", "one of its own"])
def test_a_run_ends_with_torchs_weights_and_resumes_to_the_bit(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(SEED)
    model = net()
    optimizers = torchs(kind, model)
    batch = Points(EXAMPLES).batch(np.arange(EXAMPLES), None)
    for _ in range(STEPS):
        model.zero_grad()
        loss_of(model, *batch).backward()
        for optimizer in optimizers:
            optimizer.step()
    found = trained(tmp_path / "run", kind)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.detach(), rtol=1e-3, atol=1e-4, msg=lambda text, n=name: f"{n}: {text}")
    (tmp_path / "run" / "checkpoints" / "latest").write_text("step-00000003\n")
    again = trained(tmp_path / "run", kind, resume=True)
    assert all(torch.equal(again[name], value) for name, value in found.items())


def sgd(name: str, parameter: nn.Parameter) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter], lr=LR)


@pytest.mark.parametrize(("make", "lead", "told"), [(sgd, None, True), (sgd, 0.3, False), (muon_and_adamw, None, False)])
def test_a_lead_under_sgd_of_the_task_is_told_unless_it_is_asked_for(
    make: Any, lead: float | None, told: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    settings = {"batch_size": EXAMPLES // 2, "max_steps": 1, "local": 2, "tensorboard": False, "threads": 1, "optimizer": "task"}
    weights_after(Optimised(make), Config(train_dir=tmp_path, scheme="polar-2bit", downlink_lead=lead, **settings))
    said = "the task's optimizer is SGD, which the lead of polar-2bit's downlink makes less stable" in capfd.readouterr().err
    assert said == told


def test_what_an_optimizer_does_not_have_is_refused() -> None:
    def refused(message: str, **asked: Any) -> None:
        with pytest.raises(ConfigurationError, match=message):
            check(Config(lr=LR, **asked), asked)

    def check(config: Config, asked: dict[str, Any]) -> None:
        config.validate(asked)
        resolve(config)
        require_optimizer(config, own=False)

    refused(r"--momentum has no meaning with --optimizer adagrad: leave it out", optimizer="adagrad", momentum=0.9)
    refused(r"--weight-decay has no meaning with --optimizer rprop", optimizer="rprop", weight_decay=0.1)
    refused(r"--weight-decay has no meaning with --optimizer task: say it in Task.optimizer", optimizer="task", weight_decay=0.1)
    refused(r"--beta2 needs --optimizer adam or .*, not rmsprop", optimizer="rmsprop", beta2=0.9)
    refused(r"--optimizer-option needs --optimizer adam", optimizer_option=("alpha=0.9",))
    refused(r"--optimizer-option must be KEY=VALUE, not 'alpha'", optimizer="rmsprop", optimizer_option=("alpha",))
    refused(
        r"--optimizer-option lr is not an option of rmsprop: alpha, centered", optimizer="rmsprop", optimizer_option=("lr=1",)
    )
    refused(r"--optimizer-option alpha must be a number, not 'fast'", optimizer="rmsprop", optimizer_option=("alpha=fast",))
    refused(r"--optimizer-option centered must be true or false", optimizer="rmsprop", optimizer_option=("centered=1",))
    refused(r"--optimizer rmsprop: Invalid alpha value: -1", optimizer="rmsprop", optimizer_option=("alpha=-1",))
    refused(r"--optimizer task needs one of the task's own: write Task.optimizer", optimizer="task")
    refused(r"--weight-decay with rmsprop is gathered by its momentum", optimizer="rmsprop", scheme="dgc", weight_decay=0.1)


def test_optimizers_that_are_none_of_their_tensor_or_cannot_be_saved_are_refused() -> None:
    class Nested(Counting):
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter]["history"] = [1.0]

    def build(make: Make) -> Parameters:
        model = nn.Linear(3, 2)
        tensors = [Tensor(name, tuple(value.shape)) for name, value in model.named_parameters()]
        plan = make_plan(tensors, "identity", whole_tensors=True)
        return Parameters(flat(model, plan), plan, Config(lr=LR, optimizer="task"), 0.0, own_optimizer=make)

    with pytest.raises(ConfigurationError, match=r"is to return a torch.optim.Optimizer of weight, which it was given, alone"):
        build(lambda name, parameter: torch.optim.SGD([nn.Parameter(torch.zeros(2))], 0.1))
    with pytest.raises(ConfigurationError, match=r"is to return a torch.optim.Optimizer of weight"):
        build(lambda name, parameter: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(ConfigurationError, match=r"the optimizer of (weight|bias) keeps 'history', a list"):
        build(lambda name, parameter: Nested([parameter], 0.1)).update(0, np.ones(8, np.float32), 1.0, LR)
    with pytest.raises(ConfigurationError, match=r"the optimizer of (weight|bias) cannot take a step: .*closure"):
        build(lambda name, parameter: torch.optim.LBFGS([parameter])).update(0, np.ones(8, np.float32), 1.0, LR)
    sound = build(lambda name, parameter: Counting([parameter], 0.1))
    with pytest.raises(CheckpointError, match="does not fit this run's: count:int/elsewhere"):
        sound.load({"count:int/elsewhere": torch.tensor(1)})


def test_a_session_takes_a_function_that_makes_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(session, "place", lambda: WorldRank(1, 3))
    made = session.Session(net(), train_dir=tmp_path, optimizer=muon_and_adamw)
    assert (made._config.optimizer, made._config.whole_tensors, made._optimizer) == ("task", True, muon_and_adamw)
    assert OwnLoop(net(), None, None, optimizer=muon_and_adamw).own_optimizer is muon_and_adamw
