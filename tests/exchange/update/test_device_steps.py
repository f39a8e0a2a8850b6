"""Kernels of the master's optimizers, whose text runs on a processor here: they give the host's bits, and wrong bits are
detected.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.codecs.device.cupy.row_kernels import standalone
from psnode.codecs.device.cupy.step_kernels import TEXT, StepKernels
from psnode.exchange.update.adam import Moments
from psnode.exchange.update.device_steps import DeviceSteps, checked_steps, differences
from studies import nvrtc
from tests.rows.fake_cupy import CPU, FakeCupy, install
from tests.rows.hosted import GXX

pytestmark = pytest.mark.skipif(not GXX, reason="no g++ to build CUDA text as C++")
with_nvrtc = pytest.mark.skipif(not nvrtc.find(), reason="no NVRTC: pip install nvidia-cuda-nvrtc")


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeCupy:
    return install(monkeypatch, tmp_path)


def test_all_steps_have_the_bits_of_the_host(cupy: FakeCupy) -> None:
    assert list(differences(DeviceSteps.on(CPU), CPU)) == []
    assert set(cupy.launched) == set(StepKernels.names)


@pytest.mark.parametrize("size", [1, 31, 33, 10007])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_is_that_of_torch(cupy: FakeCupy, size: int, momentum: float, nesterov: bool) -> None:
    rng, steps = np.random.default_rng(size), DeviceSteps.on(CPU)
    parameter = torch.nn.Parameter(torch.from_numpy(rng.standard_normal(size).astype(np.float32)))
    settings = {"momentum": momentum, "nesterov": nesterov, "weight_decay": 5e-4}
    torchs = torch.optim.SGD([parameter], lr=0.1, foreach=False, fused=False, **settings)  # type: ignore[arg-type]
    x, velocity = parameter.detach().clone(), torch.zeros(size)
    for lr in (0.1, 0.03, 1e-4):
        total = torch.from_numpy(rng.standard_normal(size).astype(np.float32))
        parameter.grad = total * np.float32(1 / 3)
        torchs.param_groups[0]["lr"] = lr
        torchs.step()
        steps.descend(x, velocity, total, factor=1 / 3, lr=lr, **settings)  # type: ignore[arg-type]
        torch.testing.assert_close(x, parameter.detach(), rtol=0, atol=0)
        assert not total.any()


def test_adam_is_that_of_torch_but_for_its_root(cupy: FakeCupy) -> None:
    """Check that means and squares equal torch's, and weights nearly: torch's square root may be wrong by a unit in the last
    place.
    """
    rng, steps = np.random.default_rng(1), DeviceSteps.on(CPU)
    parameter = torch.nn.Parameter(torch.from_numpy(rng.standard_normal(5000).astype(np.float32)))
    torchs = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1, foreach=False)
    x, mean, square = parameter.detach().clone(), torch.zeros(5000), torch.zeros(5000)
    for count in (1, 2, 3):
        total = torch.from_numpy(rng.standard_normal(5000).astype(np.float32))
        parameter.grad = total.clone()
        torchs.step()
        steps.adam(x, mean, square, total, Moments(0.9, 0.999, 1e-8, 0.1, True), factor=1.0, lr=0.01, count=count)
        torch.testing.assert_close(x, parameter.detach(), rtol=1e-6, atol=1e-9)
    assert torch.equal(mean, torchs.state[parameter]["exp_avg"])
    assert torch.equal(square, torchs.state[parameter]["exp_avg_sq"])


def test_only_the_given_range_moves(cupy: FakeCupy) -> None:
    x, total = torch.ones(100), torch.ones(100)
    DeviceSteps.on(CPU).descend(
        x[10:20], torch.empty(0), total[10:20], factor=1.0, lr=0.5, momentum=0.0, weight_decay=0.0, nesterov=False
    )
    expected = torch.ones(100)
    expected[10:20] = 0.5
    assert torch.equal(x, expected)
    assert torch.equal(total == 0, expected < 1)


@pytest.mark.parametrize(
    ("right", "wrong", "named"),
    [
        ("return once ?", "return !once ?", "sgd with momentum 0"),
        ("new1 < 0.5f", "new1 < 0.0f", "adam"),
        ("kept + d", "kept + d + 1e-20f", "nesterov"),
    ],
)
def test_a_device_that_rounds_otherwise_is_found_out(cupy: FakeCupy, right: str, wrong: str, named: str) -> None:
    def edit(text: str) -> str:
        assert text.count(right) == 1
        return text.replace(right, wrong)

    cupy.edit = edit
    steps, problem = checked_steps(CPU)
    assert steps is None
    assert named in problem
    cupy.edit = str


def test_what_was_found_good_is_remembered(cupy: FakeCupy) -> None:
    assert checked_steps(CPU)[1] == ""
    launched = len(cupy.launched)
    steps, problem = checked_steps(CPU)
    assert steps is not None
    assert problem == ""
    assert len(cupy.launched) == launched


@with_nvrtc
@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100"])
def test_gpus_run_it_from_registers_and_contract_only_what_rounds_once(architecture: str) -> None:
    compiled = nvrtc.compile_text(standalone(TEXT), architecture)
    assert {*re.findall(r"(\d+) bytes spill stores, (\d+) bytes spill loads", compiled.log)} == {("0", "0")}
    assert len(re.findall(r"\bfma\.rn\.f32", compiled.ptx)) >= 14
    named = "once ? MULTIPLY_ADD(a, b, c) : "
    assert standalone(TEXT).count(named) == 1
    assert "fma." not in nvrtc.compile_text(standalone(TEXT).replace(named, ""), architecture).ptx
