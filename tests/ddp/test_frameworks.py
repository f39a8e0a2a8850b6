"""The communication hook under the real Lightning and Accelerate: pip install lightning accelerate (64 MB, in no extra)."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.ddp.program import RANKS
from tests.ddp.test_comm_hook import all_gradients

pytestmark = pytest.mark.serial
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("framework", ["lightning", "accelerate"])
def test_replicas_are_equal_and_no_gradient_is_lost(framework: str, tmp_path: Path) -> None:
    """With lr 1: ranks * (w_0 - w_T) + the residuals = the sum of all gradients, as under plain DDP."""
    if importlib.util.find_spec(framework) is None:  # an import would take seconds
        pytest.skip(f"{framework} is not installed: pip install {framework}")
    program = [sys.executable, Path(__file__).with_name("frameworks.py"), framework]
    processes = [
        subprocess.Popen([*program, str(rank), tmp_path], env={**os.environ, "PYTHONPATH": str(ROOT)}) for rank in range(RANKS)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    found = [load_file(tmp_path / f"{rank}.safetensors") for rank in range(RANKS)]
    for name, total in all_gradients().items():
        weights = [each[f"weights/{name}"] for each in found]
        assert torch.equal(*weights)
        key = f"memories/residual/weights.{name}"
        kept = sum((each[key].double() for each in found if key in each), torch.zeros(total.numel(), dtype=torch.float64))
        torch.testing.assert_close(kept.reshape(total.shape) - RANKS * weights[0].double(), total, rtol=0, atol=1e-4)
        assert (key in found[0]) == (4 * total.numel() >= 4096)  # smaller ones travel as they are
    assert found[0]["sent"] > 0
    if framework == "lightning":
        assert found[0]["by strategy"] == 0  # Lightning hands the arguments of DDPStrategy to DDP on a GPU alone (docs/ddp.md)
        assert found[0]["on the cpu"] == found[0]["sent"]
        assert found[0]["same"]
