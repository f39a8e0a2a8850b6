"""Weights updated by every worker for itself: every run equals the run whose weights are all on rank 0, bit for bit."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.exchange.machine import Machine
from psnode.exchange.routes.refusals import refuse_other_roots
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.records.checkpoint import Checkpoint
from psnode.records.history import violations
from psnode.records.metrics import read_records
from tests.faults.test_exceptions import Fails
from tests.faults.test_nonfinite import Poisoned
from tests.master import test_dealt_weights
from tests.master.test_dealt_weights import (
    ADAM,
    CENTRAL,
    DEALT,
    Adapts,
    Constrained,
    Decays,
    differences,
    folder_of,
    model_hash,
    trained,
)

once = test_dealt_weights.once  # its fixture
COPIED = "gather"
DENSE_DOWN = {"downlink": "dense"}  # in a star; where no weights are sent, this is so without being said

SCHEMES: dict[str, dict[str, Any]] = {
    "dense": {"scheme": "dense"},
    "sparse": {"scheme": "topk:ratio=0.1"},
    "quantised": {"scheme": "qsgd"},
    "polar": {"scheme": "polar-2bit"},
    "low rank": {"scheme": "atomo"},
    "votes": {"scheme": "signum"},
    "masked momentum": {"scheme": "dgc"},
    "merged sketches": {"scheme": "countsketch"},
    "adam": ADAM,
    "a bound on norms": {"scheme": "qsgd", "norm_cap": 1.1},
    "clipped to the median": {"scheme": "topk:ratio=0.1", "aggregator": "mean:clip=median"},
}


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SCHEMES.values(), ids=SCHEMES)
def test_schemes_give_the_same_checkpoint(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = {"lr": None, **settings}
    one = trained(tmp_path / "one", 4, CENTRAL, {**settings, **DENSE_DOWN})
    other = trained(tmp_path / "other", 4, COPIED, settings)
    assert differences(one, other) == []
    assert model_hash(tmp_path / "one") == model_hash(tmp_path / "other")


SETTINGS: dict[str, dict[str, Any]] = {
    "clipped, averaged": {**ADAM, "clip_grad_norm": 0.5, "ema_decay": 0.8},
    "clipped by an estimate": {**ADAM, "clip_grad_norm": 0.5, "clip_estimate": "previous"},
    "in pieces": {"scheme": "polar-2bit", "group_by": "bytes", "group_bytes": 16384, "momentum": 0.9},
    "of whole tensors": {"scheme": "topk:ratio=0.1", "optimizer": "adafactor", "lr": 0.01},
}


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize(("first", "then"), [(COPIED, COPIED), (CENTRAL, COPIED), (COPIED, CENTRAL)])
def test_a_resumed_run_may_have_another_topology(
    tmp_path: Path, once: test_dealt_weights.Once, settings: dict[str, Any], first: str, then: str
) -> None:
    settings = {**settings, **DENSE_DOWN}
    whole = once(6, CENTRAL, settings)
    shutil.copytree(folder_of(once(3, first, settings)), tmp_path / "parts")
    assert differences(whole, trained(tmp_path / "parts", 6, then, settings, resume=True)) == []


@pytest.mark.parametrize("workers", [2, 4])
def test_a_resumed_run_may_have_another_number_of_workers(tmp_path: Path, workers: int) -> None:
    settings = {"scheme": "topk:ratio=0.1", "momentum": 0.9, **DENSE_DOWN}
    found = []
    for topology in (CENTRAL, COPIED):
        trained(tmp_path / topology, 3, topology, settings)
        found.append(trained(tmp_path / topology, 6, topology, settings, local=workers, resume=True))
    assert differences(*found) == []


@pytest.mark.parametrize(("task", "optimizer"), [(Decays, "adamw"), (Adapts, "task")])
def test_parameter_groups_and_an_own_optimizer_are_those_of_the_task(tmp_path: Path, task: Any, optimizer: str) -> None:
    settings = {"scheme": "dense", "optimizer": optimizer, "lr": 0.01}
    one, other = (trained(tmp_path / each, 4, each, settings, task=task) for each in (CENTRAL, COPIED))
    assert differences(one, other) == []


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_every_worker_sends_its_gradient_to_all_others_and_nobody_sends_weights(tmp_path: Path, workers: int) -> None:
    """Check that workers - 1 times as many gradient bytes are sent as in a star, in which each gradient is sent once, to the
    master.
    """
    settings = {**ADAM, **DENSE_DOWN, "local": workers}
    one, other = (trained(tmp_path / each, 3, each, settings) for each in (CENTRAL, COPIED))
    assert differences(one, other) == []
    central, copied = (list(read_records(tmp_path / each / "metrics.jsonl")) for each in (CENTRAL, COPIED))
    assert [record["uplink_bytes"] for record in copied] == [(workers - 1) * record["uplink_bytes"] for record in central]
    assert [record["downlink_bytes"] for record in copied] == [0, 0, 0]


@pytest.mark.parametrize("other", [COPIED, DEALT])
def test_a_gradient_that_is_not_finite_is_left_out_by_all_workers_alike(tmp_path: Path, other: str) -> None:
    """Check that the groups of the gradient that were sent before the bad value count, as in a star."""
    settings: dict[str, Any] = {"scheme": "qsgd", "feedback": "ef", "batch_size": 8, "max_steps": 5, "eval_freq": 0, "local": 3}
    settings |= {"threads": 1, "tensorboard": False, "group_by": "layer", "record_history": True, "hash_every": 1, "lr": 0.02}
    found = []
    for topology in (CENTRAL, other):
        folder = tmp_path / topology
        assert run(Config(train_dir=folder, topology=topology, **settings, **DENSE_DOWN), Poisoned(2, 3, 5)) == 0
        assert violations(folder) == []
        newest = checkpoint.latest(folder)
        assert newest is not None
        lines = [line["groups"] for line in read_records(folder / "history.jsonl") if "groups" in line]
        found.append((Checkpoint.open(newest), lines))
    assert found[0][1] == found[1][1]
    assert any([rank for rank, _, _ in group] == [1, 3] for version in found[0][1] for group in version)
    assert differences(found[0][0], found[1][0]) == []


LOSSES: dict[str, dict[str, Any]] = {
    "quantised": {"scheme": "qsgd", "feedback": "ef", "lr": 0.02},
    "clipped, averaged": {**ADAM, "clip_grad_norm": 0.5, "ema_decay": 0.8},
    "clipped to the median": {"scheme": "topk:ratio=0.1", "aggregator": "mean:clip=median", "lr": 0.02},
    "a bound on norms": {"scheme": "qsgd", "norm_cap": 1.3, "lr": 0.02},
}


@pytest.mark.sweep
@pytest.mark.parametrize("settings", LOSSES.values(), ids=LOSSES)
def test_a_worker_that_fails_is_missed_by_all_others_alike(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Check a worker that fails before it sends a gradient: from the first group of this step on, all sums lack this worker,
    as in a star.
    """
    settings = {"batch_size": 8, "max_steps": 8, "eval_freq": 0, "local": 4, "threads": 1, "tensorboard": False, **settings}
    settings |= {"group_by": "layer", "record_history": True, "hash_every": 1}
    found = []
    for topology in (CENTRAL, COPIED):
        folder = tmp_path / topology
        assert run(Config(train_dir=folder, topology=topology, **settings, **DENSE_DOWN), Fails()) == 0
        assert violations(folder) == []
        assert [event["rank"] for event in read_records(folder / "events.jsonl") if event["event"] == "lost"] == [2]
        newest = checkpoint.latest(folder)
        assert newest is not None
        lines = [line["groups"] for line in read_records(folder / "history.jsonl") if "groups" in line]
        found.append((Checkpoint.open(newest), lines))
    assert found[0][1] == found[1][1]
    assert len(found[1][1]) == 8
    assert differences(found[0][0], found[1][0]) == []


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"consistency": "kofn", "num_aggregate": 2}, "--consistency"),
        ({"consistency": "asp"}, "--consistency"),
        ({"aggregate_order": "arrival"}, "--aggregate-order arrival"),
        ({"plan": "auto"}, "--plan auto"),
        ({"gpu_master": True, "enable_gpu": True}, "--gpu-master"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_that_need_one_place_are_refused_by_name(tmp_path: Path, settings: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^{named} .* under --topology gather: use --topology star$"):
        trained(tmp_path / "run", 3, COPIED, {"scheme": "dense", **settings})
    assert not (tmp_path / "run" / "summary.json").exists()


def test_a_processor_that_rounds_differently_is_refused_before_the_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Machine.here()

    def told() -> Machine:
        second = threading.current_thread().name == "worker-2"
        return replace(here, arithmetic={**here.arithmetic, "fma": here.arithmetic["fma"] ^ second})

    monkeypatch.setattr(Machine, "here", staticmethod(told))
    with pytest.raises(ConfigurationError, match=r"^the processors of ranks 1 and 2 round updates of weights differently, and "):
        trained(tmp_path / "run", 1, COPIED, {"scheme": "dense"})
    trained(tmp_path / "other", 1, DEALT, {"scheme": "dense"})


def test_spares_are_refused() -> None:
    """Check that gather refuses spares. Only this check is called, since a whole run in this process would need --local,
    which refuses spares earlier.
    """
    with pytest.raises(ConfigurationError, match=r"^--spares .* under --topology gather: use --topology star$"):
        refuse_other_roots(Config(topology=COPIED, spares=1))


def test_a_constraint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^Task\.constrain changes the model of rank 0"):
        trained(tmp_path / "run", 3, COPIED, {"scheme": "dense"}, task=Constrained)


def test_a_coded_downlink_is_refused_if_it_is_asked_for_or_if_a_run_was_begun_with_one(tmp_path: Path) -> None:
    named = r"^--downlink {}\S* codes weights, and none are sent under --topology gather: begin the run with --downlink dense"
    with pytest.raises(ConfigurationError, match=named.format("scaledsign")):
        trained(tmp_path / "new", 1, COPIED, {"scheme": "qsgd", "downlink": "scaledsign"})
    trained(tmp_path / "old", 1, CENTRAL, {"scheme": "qsgd"})
    with pytest.raises(ConfigurationError, match=named.format("qsgd")):
        trained(tmp_path / "old", 2, COPIED, {"scheme": "qsgd"}, resume=True)
