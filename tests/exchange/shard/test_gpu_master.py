"""A master that adds, updates and codes on a stand-in for a device: the weights equal the host's."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from psnode.config import Config
from psnode.errors import ConfigurationError, DeviceError
from psnode.exchange.shard.shard import Shard
from psnode.jobs.job import run
from psnode.master.checkpoints.contents import Draft
from tests.exchange.device.test_training import SETTINGS, assert_same
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
STEPS = {"descend_plain", "descend_momentum", "descend_nesterov", "descend_beside", "adam"}


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    monkeypatch.setattr("psnode.master.choose_device", lambda asked, rank, flag: CPU)
    (tmp_path / "cache").mkdir()
    return install(monkeypatch, tmp_path / "cache")


def taken(cupy: FakeCupy) -> set[str]:
    """Return the names of the optimizer kernels that the stand-in for a device has run."""
    return STEPS & set(cupy.launched)


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("settings", "step"),
    [
        ({"scheme": "qsgd"}, "descend_momentum"),
        ({"scheme": "topk", "group_by": "layer"}, "descend_plain"),
        ({"scheme": "dense", "momentum": 0.9}, "descend_momentum"),
        ({"scheme": "dense", "momentum": 0.0, "downlink": "fp16"}, "descend_plain"),
        ({"scheme": "dense", "codec": "fp16", "feedback": "ef", "downlink": "bf16", "nesterov": True}, "descend_nesterov"),
        ({"scheme": "dgc", "weight_decay": 1e-3}, "descend_beside"),
        ({"scheme": "terngrad", "downlink": "topk:ratio=0.1", "optimizer": "adamw", "weight_decay": 0.1}, "adam"),
        ({"scheme": "atomo", "downlink": "natural"}, "descend_momentum"),
        ({"scheme": "efsignsgd", "group_by": "layer", "clip_grad_norm": 0.5}, "descend_plain"),
        ({"scheme": "qsgd", "aggregator": "mean:clip=median"}, "descend_momentum"),
    ],
    ids=lambda value: value if isinstance(value, str) else ",".join(map(str, value.values())),
)
def test_its_checkpoints_and_versions_are_those_of_the_host(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], step: str
) -> None:
    """Compare a job whose master uses the device with a job on the host: checkpoints, and hashes of all versions from the
    master's history.

    In both jobs the master compares the workers' hashes of every version with its own.
    """
    settings = SETTINGS | settings | {"hash_every": 1, "record_history": True}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    assert not cupy.launched
    assert run(Config(train_dir=tmp_path / "device", gpu_master=True, **settings)) == 0
    assert cupy.launched.count(step) > 6
    for version in (3, 6):
        assert_same(tmp_path / "host", tmp_path / "device", version)


def test_a_run_begins_on_either_and_goes_on_on_the_other(cupy: FakeCupy, tmp_path: Path) -> None:
    settings = SETTINGS | {"scheme": "topk", "optimizer": "adam"}
    assert run(Config(train_dir=tmp_path / "whole", **settings)) == 0
    for first in (True, False):
        folder = tmp_path / f"begun-{first}"
        assert run(Config(train_dir=folder, gpu_master=first, **settings | {"max_steps": 3})) == 0
        cupy.launched.clear()
        assert run(Config(train_dir=folder, gpu_master=not first, resume=True, **settings)) == 0
        assert ("adam" in cupy.launched) is not first
        assert_same(tmp_path / "whole", folder, 6)


def test_a_checkpoint_that_is_still_being_written_keeps_its_values(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a checkpoint keeps its values if it is written late: the values of a version two later have then been copied
    to the host to be hashed.
    """
    settings = SETTINGS | {"scheme": "qsgd", "record_history": True}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    hashed, write, hash_all = threading.Semaphore(0), Draft.write_state, Shard.digest

    def slowly(draft: Draft) -> None:
        if draft.staged.step == 3:
            assert all(hashed.acquire(timeout=30) for _ in range(5))
        write(draft)

    def digest(shard: Shard) -> str:
        found = hash_all(shard)
        hashed.release()
        return found

    monkeypatch.setattr(Draft, "write_state", slowly)
    monkeypatch.setattr(Shard, "digest", digest)
    assert run(Config(train_dir=tmp_path / "device", gpu_master=True, **settings)) == 0
    for version in (3, 6):
        assert_same(tmp_path / "host", tmp_path / "device", version)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"scheme": "signsgd"}, "a majority vote is counted there"),
        ({"scheme": "qsgd", "optimizer": "rmsprop"}, "the optimizer rmsprop is torch's or the task's"),
        ({"scheme": "qsgd", "ema_decay": 0.9}, "the moving average of the weights is kept there"),
    ],
)
def test_what_a_device_cannot_do_is_the_hosts_and_told(
    cupy: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], reason: str
) -> None:
    assert run(Config(train_dir=tmp_path / "run", gpu_master=True, **SETTINGS | settings)) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"the master: all is added and updated on the host: {reason}" in said
    assert not taken(cupy)


def test_a_device_that_takes_other_steps_is_not_used(cupy: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"scheme": "qsgd"}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    cupy.edit = lambda text: text.replace("kept + d", "kept - d")
    assert run(Config(train_dir=tmp_path / "device", gpu_master=True, **settings)) == 0
    assert_same(tmp_path / "host", tmp_path / "device", 6)
    said = " ".join(capsys.readouterr().err.split())
    assert "the device takes another step of sgd with momentum 0.9, nesterov on N(0,1)" in said


def test_what_a_device_decodes_otherwise_is_decoded_by_the_host(
    cupy: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SETTINGS | {"scheme": "dense", "codec": "fp16", "downlink": "fp16"}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    cupy.edit = lambda text: text.replace("v[k] - ", "v[k] + ")
    assert run(Config(train_dir=tmp_path / "device", gpu_master=True, **settings)) == 0
    assert_same(tmp_path / "host", tmp_path / "device", 6)
    said = " ".join(capsys.readouterr().err.split())
    for what in ("pushes", "changes of weights"):
        assert said.count(f"the master: {what}: fp16 is coded on the host: the device makes another residual") == 1
    assert "descend_momentum" in taken(cupy)


def test_without_cupy_the_host_does_it_and_says_what_to_install(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert run(Config(train_dir=tmp_path / "run", gpu_master=True, **SETTINGS | {"scheme": "qsgd"})) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "the master: all is added and updated on the host: CuPy cannot be imported" in said and "pip install '.[gpu]'" in said


def test_too_little_memory_is_told_in_a_line(cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **settings: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    monkeypatch.setattr("psnode.exchange.shard.gpu.on_device.DeviceCopies", full)
    with pytest.raises(DeviceError, match="out of memory: lower the size of the model, or leave out --gpu-master"):
        run(Config(train_dir=tmp_path / "run", gpu_master=True, **SETTINGS | {"scheme": "qsgd"}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_asking_for_a_gpu_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="--gpu-master: this torch sees no CUDA device"):
        run(Config(train_dir=tmp_path / "run", gpu_master=True, local=1))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("scheme", ["dense", "qsgd", "topk"])
def test_on_a_gpu_its_weights_are_those_of_the_host(tmp_path: Path, scheme: str) -> None:
    """Compare the final weights of a job whose master uses the GPU with those of the host. Workers compute on the host, so
    that gradients are equal.
    """
    for folder, there in (("host", False), ("device", True)):
        assert run(Config(train_dir=tmp_path / folder, gpu_master=there, **SETTINGS | {"scheme": scheme})) == 0
    assert_same(tmp_path / "host", tmp_path / "device", 6)
