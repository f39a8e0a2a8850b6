"""Training with gradients coded on a stand-in for a device: the weights equal the processor's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from psnode.codecs.arrays import Bytes
from psnode.codecs.device.spectral import SpectralEncoder
from psnode.config import Config
from psnode.jobs.job import run
from psnode.records.checkpoint import Checkpoint
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
SETTINGS: dict[str, Any] = {
    "local": 2, "threads": 1, "lr": 0.02, "max_steps": 6, "eval_freq": 3, "log_interval": 2, "tensorboard": False,
}  # fmt: skip


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    monkeypatch.setattr("psnode.worker.handshake.choose_device", lambda enable_gpu, rank=0: CPU)
    (tmp_path / "cache").mkdir()
    return install(monkeypatch, tmp_path / "cache")


def content(train_dir: Path, step: int) -> dict[str, np.ndarray]:
    """Return all tensors of a checkpoint, of all ranks."""
    folder = train_dir / "checkpoints" / f"step-{step:08d}"
    found = Checkpoint.open(folder)
    return {
        f"{path.name}/{name}": value.float().numpy()
        for path in sorted(folder.glob("*.safetensors"))
        for name, value in found.tensors(path.name).items()
    }


def assert_same(first: Path, second: Path, step: int) -> None:
    one, other = content(first, step), content(second, step)
    assert one.keys() == other.keys() and one
    for name, values in one.items():
        np.testing.assert_array_equal(values, other[name], err_msg=name)


@pytest.mark.sweep
@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "qsgd"},
        {"scheme": "dense", "codec": "fp16", "feedback": "ef", "downlink": "qsgd"},
        {"scheme": "dense", "codec": "bf16", "feedback": "ef:decay=0.9,rescale=true", "group_by": "model"},
        {"scheme": "topk"},
        {"scheme": "dgc", "sparsity_warmup_epochs": 0.2},
    ],
    ids=["without feedback", "error feedback", "a residual that decays", "a selection", "a selection of more and more"],
)
def test_training_on_a_device_gives_the_weights_and_residuals_of_the_host(
    cupy: FakeCupy, tmp_path: Path, settings: dict[str, Any]
) -> None:
    assert run(Config(train_dir=tmp_path / "host", **SETTINGS, **settings)) == 0
    assert cupy.launched == []
    assert run(Config(train_dir=tmp_path / "device", enable_gpu=True, **SETTINGS, **settings)) == 0
    assert cupy.launched.count("encode") + cupy.launched.count("mark") > 6
    for step in (3, 6):
        assert_same(tmp_path / "host", tmp_path / "device", step)


@pytest.mark.long
@pytest.mark.parametrize(
    "settings",
    [
        {"scheme": "qsgd"},
        {"scheme": "dense", "codec": "fp16", "feedback": "ef", "downlink": "bf16"},
        {"scheme": "efsignsgd"},
    ],
    ids=["a factor in front", "halves", "a few entries"],
)
def test_weights_that_are_changed_on_the_device_alone_are_those_of_the_host(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Check the weights against the host's after every step. The model has its own memory, and the host keeps no values that
    the device changes.
    """
    assert run(Config(train_dir=tmp_path / "host", **SETTINGS, **settings)) == 0
    monkeypatch.setattr("psnode.exchange.replica._is_host", lambda device: False)
    assert run(Config(train_dir=tmp_path / "device", enable_gpu=True, hash_every=1, **SETTINGS, **settings)) == 0
    assert cupy.launched.count("decode") > 6 or settings["scheme"] == "efsignsgd"
    assert_same(tmp_path / "host", tmp_path / "device", 6)


def test_a_run_that_goes_on_has_its_residuals_on_the_device_again(cupy: FakeCupy, tmp_path: Path) -> None:
    settings = SETTINGS | {"scheme": "dense", "codec": "fp16", "feedback": "ef"}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    for steps in (3, 6):
        again = settings | {"max_steps": steps, "resume": steps > 3}
        assert run(Config(train_dir=tmp_path / "device", enable_gpu=True, **again)) == 0
    assert cupy.launched
    assert_same(tmp_path / "host", tmp_path / "device", 6)


def test_a_device_that_lies_costs_speed_and_no_model(cupy: FakeCupy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = SETTINGS | {"scheme": "dense", "codec": "fp16", "feedback": "ef"}
    assert run(Config(train_dir=tmp_path / "host", **settings)) == 0
    cupy.edit = lambda text: text.replace("v[k] - ", "v[k] + ")
    assert run(Config(train_dir=tmp_path / "device", enable_gpu=True, **settings)) == 0
    assert_same(tmp_path / "host", tmp_path / "device", 6)
    said = " ".join(capsys.readouterr().err.split())
    for rank in (1, 2):
        assert said.count(f"rank {rank}: fp16 is coded on the host: the device makes another residual") == 1


def test_without_cupy_the_host_codes_and_says_what_to_install(
    cupy: FakeCupy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert run(Config(train_dir=tmp_path / "run", enable_gpu=True, **SETTINGS | {"scheme": "qsgd", "local": 1})) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "rank 1: every codec is coded on the host: CuPy cannot be imported" in said and "pip install '.[gpu]'" in said


@pytest.mark.parametrize("begins_there", [False, True], ids=["host to device", "device to host"])
def test_a_run_that_goes_on_elsewhere_has_the_weights_and_residuals_of_one_that_never_stopped(
    cupy: FakeCupy, tmp_path: Path, begins_there: bool
) -> None:
    settings = SETTINGS | {"scheme": "dense", "codec": "fp16", "feedback": "ef"}
    assert run(Config(train_dir=tmp_path / "whole", **settings)) == 0
    first = settings | {"max_steps": 3, "enable_gpu": begins_there}
    assert run(Config(train_dir=tmp_path / "two", **first)) == 0
    assert bool(cupy.launched) == begins_there
    cupy.launched.clear()
    second = settings | {"enable_gpu": not begins_there, "resume": True}
    assert run(Config(train_dir=tmp_path / "two", **second)) == 0
    assert bool(cupy.launched) != begins_there
    assert_same(tmp_path / "whole", tmp_path / "two", 6)


def test_atomo_is_coded_there_without_cupy_and_every_worker_keeps_the_weights_of_the_master(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check that atomo is coded on the device without CuPy, and that workers and master agree on the hash of each version.

    Factors may differ from the host's in their last bits, so weights are not compared with the host's.
    """
    coded: list[tuple[int, ...]] = []

    class Counted(SpectralEncoder):
        def take(self, out: Bytes) -> int:
            coded.append(self._shape)
            return super().take(out)

    monkeypatch.setattr("psnode.worker.handshake.choose_device", lambda enable_gpu, rank=0: CPU)
    install(monkeypatch, tmp_path)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr("psnode.codecs.device.contractive_forms.SpectralEncoder", Counted)
    settings = SETTINGS | {"scheme": "atomo", "hash_every": 1}
    assert run(Config(train_dir=tmp_path / "run", enable_gpu=True, **settings)) == 0
    assert len(coded) >= 2 * 6 and all(len(shape) > 1 for shape in coded)
    assert "is coded on the host" not in " ".join(capsys.readouterr().err.split())
