"""A master on a device with delayed checkpoints, spectral changes, foreign payloads and faults of the device."""

from __future__ import annotations

from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from examples.regression import Regression
from psnode.codecs import get_codec
from psnode.codecs.registry import load_codec
from psnode.codecs.rng import Key
from psnode.config import Config
from psnode.errors import DeviceError
from psnode.exchange.device.placing import changes_on
from psnode.exchange.shard.aggregator import Mean
from psnode.exchange.shard.gpu.device_arithmetic import DeviceArithmetic
from psnode.exchange.shard.gpu.device_mover import DeviceMover
from psnode.exchange.update.device_copies import DeviceCopies, told
from psnode.jobs.job import run
from psnode.master.checkpoints.pending import PendingCheckpoints
from psnode.master.divergence import ReplicaHashes
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan
from psnode.worker.checkpoint_part import CheckpointParts
from tests.exchange.device.test_training import assert_same
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
SETTINGS: dict[str, Any] = {
    "local": 2, "threads": 1, "lr": 0.02, "max_steps": 6, "eval_freq": 3, "momentum": 0.9, "tensorboard": False, "hash_every": 1,
    "scheme": "dense",
}  # fmt: skip


class Statistics(Regression):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))


class Matrices(Regression):
    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    monkeypatch.setattr("psnode.master.choose_device", lambda asked, rank, flag: CPU)
    (tmp_path / "cache").mkdir()
    return install(monkeypatch, tmp_path / "cache")


@pytest.mark.parametrize(
    ("rule", "owner", "method"),
    [
        ({}, ReplicaHashes, "note"),
        ({"consistency": "kofn", "num_aggregate": 1, "hash_every": 0, "eval_freq": 2}, PendingCheckpoints, "begin"),
    ],
    ids=["a hash of the next version", "the next checkpoint"],
)
def test_a_late_part_of_a_checkpoint_holds_up_nobody_where_there_is_no_room_for_copies(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: dict[str, Any], owner: type, method: str
) -> None:
    """Check that training continues while a part is late. A model with buffers is written when all parts have arrived; rank
    2's part waits until the weights are read again.
    """
    looked, again, waited = getattr(owner, method), Event(), list[bool]()
    hand_in, first = CheckpointParts._hand_in, min(3, rule.get("eval_freq", 3))

    def look(self: Any, step: int, *arguments: Any) -> Any:
        found = looked(self, step, *arguments)
        if step > first:
            again.set()
        return found

    def late(self: CheckpointParts, *arguments: Any) -> None:
        if self._link.rank == 2 and not waited:
            waited.append(again.wait(300))
        hand_in(self, *arguments)

    monkeypatch.setattr(owner, method, look)
    monkeypatch.setattr(CheckpointParts, "_hand_in", late)
    assert run(Config(train_dir=tmp_path / "run", gpu_master=True, checkpoint_memory=1, **SETTINGS | rule), Statistics()) == 0
    assert waited == [True]


def test_spectral_changes_of_weights_are_those_of_the_host(
    cupy: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"scheme": "atomo", "min_compress_bytes": 512, "downlink": "svd:rank=3,method=deflated"}
    for there in (False, True):
        assert run(Config(train_dir=tmp_path / str(there), gpu_master=there, **settings), Matrices()) == 0
    assert_same(tmp_path / "False", tmp_path / "True", 6)
    said = " ".join(capsys.readouterr().err.split())
    assert "changes of weights: svd:rank=3" in said and "a device makes other last bits of its factors" in said


def test_a_push_of_other_parameters_is_added_as_on_the_host(cupy: FakeCupy) -> None:
    load_codec("examples/row_codec.py:Levels")
    codec, other = get_codec("levels:levels=7"), get_codec("levels:levels=5")
    plan = make_plan([Tensor("t", (60, 50))], "levels:levels=7", group_by="model", min_compress_bytes=0)
    segment, total = plan.segments[0], torch.zeros(plan.size)
    values = np.random.default_rng(1).standard_normal(segment.shape).astype(np.float32)
    payload, expected = other.encode(values, Key.derive(1, "g", 0, 0, 0, 0)), np.zeros(plan.size, np.float32)
    codec.measure(payload, np.empty(segment.size, np.float32)).add(expected, np.float32(1))
    changes = changes_on(plan, [codec], total).by_segment
    DeviceArithmetic(plan, [codec], Mean(), None, total, changes).add_payload(segment, payload, 1)  # type: ignore[arg-type]
    np.testing.assert_array_equal(total.numpy(), expected)


@pytest.mark.parametrize("first", ["update", "copy"])
def test_a_device_that_fails_ends_the_job_in_one_line(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    """Check that the job ends with one error line if the device fails and every later call on it fails too."""

    def fail(*arguments: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later")

    monkeypatch.setattr(DeviceCopies, "copy", told(fail))
    if first == "update":
        monkeypatch.setattr(DeviceArithmetic, "update", told(fail))
    with pytest.raises(DeviceError, match="the device has failed") as error:
        run(Config(train_dir=tmp_path / "run", gpu_master=True, **SETTINGS), Matrices())
    assert "\n" not in str(error.value)
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_sparse_change_that_the_host_decodes_leaves_the_sign_of_zeros(cupy: FakeCupy) -> None:
    """Check that a decoded sparse change adds only to the payload's coordinates, as on the workers, so that other zeros keep
    their sign.
    """
    codec = get_codec("topk:ratio=0.1")
    plan = make_plan([Tensor("t", (1000,))], "topk:ratio=0.1", group_by="model", min_compress_bytes=0)
    x, y = torch.zeros(1000), torch.full((1000,), -0.0)
    x[:50] = 1.0
    DeviceMover(x, y, {}, {}).move(plan.segments[0], codec, Key.derive(1), np.empty(codec.max_nbytes((1000,)), np.uint8))
    assert y[:50].eq(1).all()
    assert torch.signbit(y[100:]).all()


def test_copies_are_of_the_newest_values_and_views_of_a_home_find_theirs() -> None:
    first, second, other = torch.arange(6.0), torch.arange(4.0), torch.ones(3)
    device_copies = DeviceCopies([first, second], CPU)
    device_copies.of(first).mul_(2)
    device_copies.of(second).add_(1)
    newest = device_copies.copies([first, second])
    device_copies.of(first).zero_()
    assert newest(first[2:6].view(2, 2)).tolist() == [[4.0, 6.0], [8.0, 10.0]]
    assert newest(second[3:]).tolist() == [4.0]
    assert newest(other) is other
    assert newest(first[:0]).shape == (0,)
    assert first.tolist() == [0, 1, 2, 3, 4, 5]
    device_copies.renew()
    assert device_copies.copy(first).tolist() == first.tolist()
