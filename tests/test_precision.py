"""--precision bf16: weights equal those of a torch loop with autocast around its forward pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import psnode
from psnode.config import Config
from psnode.errors import ConfigurationError
from psnode.jobs.sessions.session_settings import configured
from psnode.transport.mpi.environment import WorldRank
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Points, Trains, loss_of, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 6, 3, 0.1


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, CLASSES))


class Noted(Trains):
    """Records the types of the outputs from which the loss is computed."""

    types: set[torch.dtype]

    def loss(self, model: nn.Module, batch: Any) -> Any:
        self.types = {*getattr(self, "types", ()), model(batch[0]).dtype}
        return super().loss(model, batch)


def by_torch(dtype: torch.dtype, passes: int = 1) -> dict[str, torch.Tensor]:
    torch.manual_seed(SEED)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9)
    x, y = Points(EXAMPLES).batch(np.arange(EXAMPLES), None)
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(passes):
            with torch.autocast("cpu", dtype, enabled=dtype is not torch.float32):
                loss = loss_of(model, x, y) / passes
            loss.backward()
        optimizer.step()
    return {name: weight.detach() for name, weight in model.named_parameters()}


def trained(folder: Path, task: psnode.Task, **settings: Any) -> dict[str, torch.Tensor]:
    known = {"scheme": "dense", "lr": LR, "momentum": 0.9, "seed": SEED, "batch_size": EXAMPLES, "max_steps": STEPS, "local": 1}
    known |= {"tensorboard": False, "threads": 1, **settings}
    return weights_after(task, Config(train_dir=folder, **known))


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_weights_are_those_of_torch_with_autocast_and_stay_float32(precision: str, tmp_path: Path) -> None:
    """Check that weights equal torch's with autocast and stay float32, and that the other precision gives other weights."""
    types = {"bf16": torch.bfloat16, "fp32": torch.float32}
    task = Noted(net, EXAMPLES)
    found = trained(tmp_path, task, precision=precision)
    assert task.types == {types[precision]}
    other = by_torch(types["fp32" if precision == "bf16" else "bf16"])
    for name, weight in by_torch(types[precision]).items():
        assert found[name].dtype is torch.float32
        torch.testing.assert_close(found[name], weight, rtol=1e-5, atol=1e-6)
        assert not torch.allclose(found[name], other[name], rtol=1e-5, atol=1e-6), name


def test_a_coded_run_is_the_same_to_the_bit_where_it_is_resumed(tmp_path: Path) -> None:
    settings = {"scheme": "topk:ratio=0.1", "min_compress_bytes": 0, "precision": "bf16", "lr": 0.02}
    task = Trains(net, EXAMPLES)
    whole = trained(tmp_path / "whole", task, **settings)
    trained(tmp_path / "parts", task, **{**settings, "max_steps": 3})
    parts = trained(tmp_path / "parts", task, resume=True, **settings)
    assert all(torch.equal(parts[name], weight) for name, weight in whole.items())


def test_fp16_is_refused_with_the_reason_and_a_session_says_where_autocast_belongs() -> None:
    with pytest.raises(ConfigurationError, match=r"--precision fp16 needs a GradScaler, .* use bf16"):
        Config(precision="fp16").validate()
    with pytest.raises(
        ConfigurationError, match=r"precision has no meaning in a session: the loop enters torch\.autocast itself"
    ):
        configured(net(), {"precision": "bf16"}, WorldRank(1, 3))


def test_a_session_does_not_pass_over_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSNODE_PRECISION", "bf16")
    with pytest.raises(ConfigurationError, match="precision has no meaning in a session"):
        configured(net(), {}, WorldRank(1, 3))
