"""Weights dealt among the workers: every run equals the run whose weights are all on rank 0, bit for bit."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from psnode import run
from psnode.config import Config
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.exchange.shard.remote import state_sender
from psnode.exchange.shard.remote.shard_server import ShardServer
from psnode.exchange.shard.remote.state_sender import StateSender
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains

CENTRAL, DEALT, SHARED = "star", "mesh", "mesh:master=auto"
SERVED, MANY = "sharded:servers=2", "sharded:servers=5"  # the latter has more servers than groups


def network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(WIDTH, 24), nn.Tanh(), nn.BatchNorm1d(24), nn.Linear(24, 17), nn.Tanh(), nn.Linear(17, CLASSES)
    )


Once = Callable[[int, str, dict[str, Any]], Checkpoint]


class Decays(Trains):
    """A task with parameter groups. `asked`: the number of calls of `parameter_groups`."""

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


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Return a function like `trained`, but without a folder: each run is made once and shared by the tests, which may only
    read it.
    """
    made: dict[str, Checkpoint] = {}

    def shared(steps: int, topology: str, settings: dict[str, Any]) -> Checkpoint:
        key = repr((steps, topology, settings))
        if key not in made:
            made[key] = trained(tmp_path_factory.mktemp("once") / "run", steps, topology, settings)
        return made[key]

    return shared


def folder_of(run: Checkpoint) -> Path:
    return run.path.parents[1]


def differences(one: Checkpoint, other: Checkpoint) -> list[str]:
    """Return the tensors in which two checkpoints differ, in all files except that of the norms of pushes."""
    assert one.facts["files"].keys() == other.facts["files"].keys()
    found = []
    for file in one.facts["files"].keys() - {checkpoint.NORMS}:
        tensors, others = one.tensors(file), other.tensors(file)
        assert tensors.keys() == others.keys()
        found += [f"{file}: {name}" for name, value in tensors.items() if not torch.equal(value, others[name])]
    return found


def model_hash(folder: Path) -> str:
    return str(json.loads((folder / "summary.json").read_text())["model_hash"])


SOME = ("dense", "topk:ratio=0.1", "qsgd", "onebit", "atomo")  # plain, sparse, without bias, with a codebook, of whole tensors


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("topology", "scheme"),
    [*((DEALT, scheme) for scheme in SCHEMES), *((each, scheme) for each in (SHARED, SERVED, MANY) for scheme in SOME)],
)
def test_every_scheme_gives_the_same_checkpoint(tmp_path: Path, once: Once, topology: str, scheme: str) -> None:
    one = once(4, CENTRAL, {"scheme": scheme, "lr": None})
    other = trained(tmp_path / "other", 4, topology, {"scheme": scheme, "lr": None})
    assert differences(one, other) == []
    assert model_hash(folder_of(one)) == model_hash(tmp_path / "other")


ADAM = {"scheme": "qsgd", "optimizer": "adamw", "lr": 0.01}
SETTINGS: dict[str, dict[str, Any]] = {
    "clipped": {**ADAM, "clip_grad_norm": 0.5},
    "clipped by an estimate": {**ADAM, "clip_grad_norm": 0.5, "clip_estimate": "previous"},
    "averaged": {**ADAM, "ema_decay": 0.8},
    "in pieces": {"scheme": "polar-2bit", "group_by": "bytes", "group_bytes": 16384, "momentum": 0.9},
    "decayed": {"scheme": "dense", "weight_decay": 0.01, "no_decay": ("bias",), "optimizer": "radam"},
    "of whole tensors": {"scheme": "topk:ratio=0.1", "optimizer": "adafactor", "lr": 0.01},
}


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(
    ("first", "then"),
    [
        *((each, each) for each in (DEALT, SHARED, SERVED)),
        *((CENTRAL, each) for each in (DEALT, SHARED, SERVED)),
        *((each, CENTRAL) for each in (DEALT, SHARED, SERVED)),
    ],
)
def test_a_resumed_run_may_have_another_topology(
    tmp_path: Path, once: Once, settings: dict[str, Any], first: str, then: str
) -> None:
    whole = once(6, CENTRAL, settings)
    shutil.copytree(folder_of(once(3, first, settings)), tmp_path / "parts")
    assert differences(whole, trained(tmp_path / "parts", 6, then, settings, resume=True)) == []


AMID = {**ADAM, "ema_decay": 0.8, "clip_grad_norm": 0.5, "clip_estimate": "previous", "eval_freq": 2, "keep_last": 0}


def saved(run: Checkpoint) -> list[Checkpoint]:
    return [Checkpoint.open(path) for path in checkpoint.complete(folder_of(run))]


@pytest.mark.parametrize("topology", [DEALT, SHARED, SERVED])
def test_state_is_handed_over_while_later_rounds_change_it(
    tmp_path: Path, once: Once, monkeypatch: pytest.MonkeyPatch, topology: str
) -> None:
    """Check states that are read only after two more rounds have begun, which would never begin if they waited for the states."""
    later, opened, real_open, real_read = threading.Event(), [0], ShardServer._open, StateSender._pack

    def open_(self: ShardServer, version: int, first_step: int, steps: int, lr: float) -> None:
        opened[0] = max(opened[0], version)
        if opened[0] >= 3:  # two rounds have begun since the checkpoint of version 2
            later.set()
        real_open(self, version, first_step, steps, lr)

    def read(self: StateSender, *arguments: Any) -> None:
        assert later.wait(60)
        real_read(self, *arguments)

    monkeypatch.setattr(ShardServer, "_open", open_)
    monkeypatch.setattr(StateSender, "_pack", read)
    monkeypatch.setattr(state_sender, "PIECE", 1000)
    one, other = saved(once(6, CENTRAL, AMID)), saved(trained(tmp_path / "other", 6, topology, AMID))
    assert [each.step for each in other] == [each.step for each in one]
    assert [differences(*pair) for pair in zip(one, other, strict=True)] == [[]] * len(one)
    assert [each.facts.get("norm") for each in one] == [each.facts.get("norm") for each in other]


@pytest.mark.parametrize("topology", [DEALT, SHARED, SERVED])
def test_a_run_whose_optimizer_has_no_memory_is_resumed(tmp_path: Path, topology: str) -> None:
    settings = {"scheme": "onebit", "lr": 0.01}
    whole = trained(tmp_path / "whole", 4, CENTRAL, settings)
    assert not whole.tensors(checkpoint.OPTIMIZER)
    trained(tmp_path / "parts", 2, topology, settings)
    assert differences(whole, trained(tmp_path / "parts", 4, topology, settings, resume=True)) == []


@pytest.mark.parametrize(("task", "optimizer"), [(Decays, "adamw"), (Adapts, "task")])
def test_parameter_groups_and_an_own_optimizer_are_those_of_the_task(tmp_path: Path, task: Any, optimizer: str) -> None:
    settings = {"scheme": "dense", "optimizer": optimizer, "lr": 0.01}
    one, *others = (trained(tmp_path / each, 4, each, settings, task=task) for each in (CENTRAL, DEALT, SHARED, SERVED))
    assert [differences(one, other) for other in others] == [[], [], []]


def test_parameter_groups_are_asked_for_where_weights_are_updated_and_nowhere_else(tmp_path: Path) -> None:
    asked = {}
    for topology in (CENTRAL, DEALT, SHARED, SERVED):
        Decays.asked = 0
        trained(tmp_path / topology, 1, topology, {"scheme": "dense"}, task=Decays)
        asked[topology] = Decays.asked
    assert asked == {CENTRAL: 1, DEALT: 1 + 3, SHARED: 1 + 3, SERVED: 1 + 1}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_another_number_of_workers(tmp_path: Path, workers: int) -> None:
    """Check other numbers of workers than three. With five workers and three groups, some workers have no part of the weights."""
    one, *others = (trained(tmp_path / each, 3, each, ADAM, local=workers) for each in (CENTRAL, DEALT, SHARED, SERVED, MANY))
    assert [differences(one, other) for other in others] == [[]] * 4


class Leading(nn.Module):
    """Returns the first columns of its input, one for each class."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :CLASSES]


def five_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(5)), Leading())


def test_bytes_are_those_of_the_ways_between_different_ranks(tmp_path: Path) -> None:
    """Check that bytes are proportional to the frames between different ranks. Each of three workers sends each of five
    equal groups to its root, unless the worker is the root; workers are the roots of no group, of all five or of three.
    """
    known: dict[str, Any] = {"scheme": "dense", "lr": 0.01, "batch_size": 8, "local": 3, "tensorboard": False, "threads": 1}
    ways, found = {CENTRAL: 5 * 3, DEALT: 5 * 2, SHARED: 2 * 3 + 3 * 2, SERVED: 5 * 3}, {}
    for topology in ways:
        config = Config(train_dir=tmp_path / topology, max_steps=2, topology=topology, group_by="layer", **known)
        assert run(Trains(five_layers, 80), config) == 0
        records = read_records(tmp_path / topology / "metrics.jsonl")
        [found[topology]] = {(record["uplink_bytes"], record["downlink_bytes"]) for record in records}
        ranks = json.loads((tmp_path / topology / "summary.json").read_text())["link_bytes"]["ranks"].values()
        for kind, nbytes in zip(("gradients", "weights"), found[topology], strict=True):
            assert [sum(rank[f"{kind}_{way}"] for rank in ranks) for way in ("out", "in")] == [2 * nbytes, 2 * nbytes]
    up, down = (nbytes // ways[CENTRAL] for nbytes in found[CENTRAL])
    assert up > 4 * WIDTH * WIDTH
    assert down > 4 * WIDTH * WIDTH
    assert found == {topology: (count * up, count * down) for topology, count in ways.items()}


@pytest.mark.parametrize("topology", [DEALT, SHARED, SERVED])
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
def test_settings_that_need_one_place_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], named: str, topology: str
) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{named} .* under --topology {topology}: use --topology star$"):
        trained(tmp_path / "run", 3, topology, {"scheme": "dense", **settings})
    assert not (tmp_path / "run" / "summary.json").exists()


class Constrained(Trains):
    """A task with a constraint."""

    def constrain(self, model: nn.Module) -> None:
        for parameter in model.parameters():
            parameter.clamp_(-1, 1)


@pytest.mark.parametrize(("topology", "root"), [(DEALT, "worker"), (SHARED, "worker"), (SERVED, "server")])
def test_a_constraint_is_refused(tmp_path: Path, topology: str, root: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^Task\.constrain changes all weights at once, and every {root} has a part"):
        trained(tmp_path / "run", 3, topology, {"scheme": "dense"}, task=Constrained)


def test_one_server_is_the_master(tmp_path: Path) -> None:
    one = trained(tmp_path / "one", 3, CENTRAL, {"scheme": "qsgd"})
    other = trained(tmp_path / "other", 3, "sharded:servers=1", {"scheme": "qsgd"}, task=Constrained)
    assert differences(one, trained(tmp_path / "again", 3, "sharded:servers=1", {"scheme": "qsgd"})) == []
    assert other.facts["files"].keys() == one.facts["files"].keys()


def test_roots_get_the_weights_that_rank_0_has_and_they_have_not(tmp_path: Path) -> None:
    """Check that roots get rank 0's weights in a new run that begins with given weights instead of those of the seed."""
    first = trained(tmp_path / "first", 3, CENTRAL, {"scheme": "qsgd"})
    from_file = {"scheme": "qsgd", "init_from": str(first.path / checkpoint.MODEL)}
    one, *others = (trained(tmp_path / each, 3, each, from_file) for each in (CENTRAL, DEALT, SHARED, SERVED))
    assert [differences(one, other) for other in others] == [[], [], []]
