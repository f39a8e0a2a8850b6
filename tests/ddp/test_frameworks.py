"""The communication hook under the real Lightning and Accelerate, from the extra `frameworks`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.ddp.program import RANKS
from tests.ddp.test_comm_hook import all_gradients
from tests.forking import FORKING

pytestmark = pytest.mark.serial
ROOT = Path(__file__).resolve().parents[2]
Results = dict[str, list[dict[str, torch.Tensor]]]


@pytest.fixture(scope="module", params=["lightning", "accelerate"])
def framework(request: pytest.FixtureRequest) -> str:
    if importlib.util.find_spec(request.param) is None:  # an import would take seconds
        pytest.skip(f"{request.param} is not installed: pip install '.[frameworks]'")
    return str(request.param)


@pytest.fixture(scope="module")
def results(framework: str, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Return the results of both ranks for both parts: `whole`, an undisturbed run, and `resumed`, new processes that
    continue from its checkpoint.
    """
    folder = tmp_path_factory.mktemp(framework)
    return {part: ranks(framework, part, folder) for part in ("whole", "resumed")}


def ranks(framework: str, part: str, folder: Path) -> list[dict[str, torch.Tensor]]:
    program = [FORKING.python(), Path(__file__).with_name("frameworks.py"), framework, part]
    processes = [
        subprocess.Popen([*program, str(rank), folder], env={**os.environ, "PYTHONPATH": str(ROOT)}) for rank in range(RANKS)
    ]
    assert [process.wait(timeout=300) for process in processes] == [0] * RANKS
    return [load_file(folder / f"{part}-{rank}.safetensors") for rank in range(RANKS)]


@pytest.mark.long
def test_replicas_are_equal_and_no_gradient_is_lost(framework: str, results: Results) -> None:
    """Check with lr 1 that ranks * (w_0 - w_T) + residuals is the sum of all gradients, as under plain DDP."""
    found = results["whole"]
    for name, total in all_gradients().items():
        weights = [each[f"weights/{name}"] for each in found]
        assert torch.equal(*weights)
        keys = [key for key in found[0] if key.startswith("state/memories/residual/") and key.endswith(f"weights.{name}")]
        assert len(keys) == (4 * total.numel() >= 4096)  # smaller tensors are sent uncoded
        kept = sum((each[key].double() for each in found for key in keys), torch.zeros(total.numel(), dtype=torch.float64))
        torch.testing.assert_close(kept.reshape(total.shape) - RANKS * weights[0].double(), total, rtol=0, atol=1e-4)
    assert found[0]["sent"] > 0
    if framework == "lightning":
        assert found[0]["by strategy"] == 0  # Lightning passes the arguments of DDPStrategy to DDP on GPUs only (docs/ddp.md)
        assert found[0]["on the cpu"] == found[0]["sent"]
        assert found[0]["same"]


def test_fresh_processes_go_on_from_the_frameworks_checkpoint_bit_for_bit(framework: str, results: Results) -> None:
    """Check that every rank gets back its own memories, although rank 0 wrote them for all ranks."""
    for whole, resumed in zip(results["whole"], results["resumed"], strict=True):
        compared = [key for key in whole if key.startswith(("weights/", "state/"))]
        assert sum(key.startswith("state/memories/residual/") for key in compared) == 2
        assert all(torch.equal(whole[key], resumed[key]) for key in compared)
        assert 0 < resumed["sent"] < whole["sent"]
    if framework == "lightning":  # a strategy that does not wrap the module was tried too
        assert "write Trainer(strategy='ddp')" in bytes(results["resumed"][0]["refused"]).decode()
    first, second = results["resumed"]
    assert any(not torch.equal(first[key], second[key]) for key in first if key.startswith("state/memories/"))
