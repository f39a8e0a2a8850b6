"""--clip-grad-norm: weights and norms equal those of a torch loop that clips by the norm of all gradients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.errors import ConfigurationError
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Constrained, Points, loss_of, weights_after

EXAMPLES, STEPS, SEED, LR = 16, 12, 3, 0.5
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.0},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "adamw": {"optimizer": "adamw", "momentum": 0.9, "weight_decay": 0.1, "lr": 0.01},
}


class Net(nn.Module):
    """Three layers of different sizes; `limit` may bound the weights of the first."""

    def __init__(self, limit: float | None) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(WIDTH, 24), nn.Tanh(), nn.Linear(24, 10), nn.Tanh(), nn.Linear(10, CLASSES))
        self.limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layers(x)
        return out

    @torch.no_grad()
    def constrain(self) -> None:
        if self.limit is not None:
            self.layers[0].weight.clamp_(-self.limit, self.limit)


def by_torch(
    bound: float, settings: dict[str, Any], limit: float | None, *, previous: bool = False
) -> tuple[dict[str, torch.Tensor], list[float]]:
    """Return the weights after the steps, and each gradient's norm; with `previous`, every step but the first
    is clipped by the norm of the step before it.
    """
    torch.manual_seed(SEED)
    model = Net(limit)
    lr, momentum, decay = settings.get("lr", LR), settings["momentum"], settings.get("weight_decay", 0.0)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(
        model.parameters(), lr, momentum=momentum, nesterov=settings.get("nesterov", False), weight_decay=decay
    )
    if "optimizer" in settings:
        optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(momentum, 0.999), weight_decay=decay)
    batch, norms = Points(EXAMPLES).batch(torch.arange(EXAMPLES).numpy(), None), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        norms.append(float(nn.utils.get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])))
        taken = norms[-2] if previous and len(norms) > 1 else norms[-1]
        nn.utils.clip_grads_with_norm_(model.parameters(), bound, torch.tensor(taken))
        optimizer.step()
        model.constrain()
    return {name: weight.detach() for name, weight in model.named_parameters()}, norms


def trained(folder: Path, *, limit: float | None = None, **settings: Any) -> dict[str, torch.Tensor]:
    """Return the weights after training with two workers, each of which has half of the examples."""
    known = {"scheme": "dense", "lr": LR, "seed": SEED, "batch_size": EXAMPLES // 2, "max_steps": STEPS, "local": 2}
    known |= {"group_by": "layer", "tensorboard": False, "threads": 1, "hash_every": 1, **settings}
    return weights_after(Constrained(lambda: Net(limit), EXAMPLES), Config(train_dir=folder, **known))


def norms_in(folder: Path) -> list[float]:
    return [json.loads(line)["gradient_norm"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.sweep
@pytest.mark.parametrize("estimate", ["exact", "previous"])
@pytest.mark.parametrize("limit", [None, 0.2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_weights_and_norms_are_those_of_torch(name: str, limit: float | None, estimate: str, tmp_path: Path) -> None:
    _, free = by_torch(1e6, OPTIMIZERS[name], limit)
    bound = sorted(free)[STEPS // 2]
    expected, norms = by_torch(bound, OPTIMIZERS[name], limit, previous=estimate == "previous")
    assert min(norms) < bound < max(norms)  # some steps are clipped, some are not
    found = trained(tmp_path / "run", limit=limit, clip_grad_norm=bound, clip_estimate=estimate, **OPTIMIZERS[name])
    assert norms_in(tmp_path / "run") == pytest.approx(norms, rel=1e-3)
    for key, weight in expected.items():
        torch.testing.assert_close(found[key], weight, rtol=1e-4, atol=1e-5, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize("estimate", ["exact", "previous"])
def test_a_coded_run_is_the_same_to_the_bit_where_it_is_resumed(estimate: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "scheme": "topk:ratio=0.1", "momentum": 0.9, "min_compress_bytes": 0, "clip_grad_norm": 0.05, "lr": 0.1,
        "clip_estimate": estimate,
    }  # fmt: skip
    whole = trained(tmp_path / "whole", **settings)
    trained(tmp_path / "parts", **{**settings, "max_steps": 5})
    parts = trained(tmp_path / "parts", resume=True, **settings)
    assert norms_in(tmp_path / "parts") == norms_in(tmp_path / "whole")
    assert max(norms_in(tmp_path / "whole")) > 0.05
    for key, weight in whole.items():
        assert torch.equal(parts[key], weight), key


def test_the_two_norms_are_not_the_same_rule(tmp_path: Path) -> None:
    """Show that the rules differ: the first step is clipped by its own norm, later ones by the previous norm."""
    bound = 0.5 * min(by_torch(1e6, OPTIMIZERS["sgd"], None)[1])
    settings: dict[str, Any] = {**OPTIMIZERS["sgd"], "clip_grad_norm": bound}
    exact = trained(tmp_path / "exact", max_steps=1, **settings)
    first = trained(tmp_path / "first", max_steps=1, clip_estimate="previous", **settings)
    assert all(torch.equal(first[key], weight) for key, weight in exact.items())
    exact = trained(tmp_path / "exact2", max_steps=2, **settings)
    second = trained(tmp_path / "second", max_steps=2, clip_estimate="previous", **settings)
    assert not all(torch.equal(second[key], weight) for key, weight in exact.items())


def test_an_estimate_without_a_bound_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="--clip-estimate needs --clip-grad-norm"):
        Config(clip_estimate="previous").validate()


def test_it_is_refused_where_no_gradient_comes_and_below_zero() -> None:
    with pytest.raises(ConfigurationError, match="the workers send votes: leave it out"):
        resolve(Config(scheme="signsgd", clip_grad_norm=1.0))
    with pytest.raises(ConfigurationError, match=r"the workers send momenta \(feedback dgc"):
        resolve(Config(scheme="dgc", clip_grad_norm=1.0))
    with pytest.raises(ConfigurationError, match="--clip-grad-norm"):
        Config(clip_grad_norm=0.0)
    assert resolve(Config(scheme="topk", clip_grad_norm=1.0)).feedback == "ef:rescale=true"
