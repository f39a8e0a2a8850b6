"""Momentum is applied once, either by the master or by the workers, and includes weight decay in both cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from psnode.config import Config
from psnode.config.resolve import resolve
from psnode.config.schemes import SCHEMES
from psnode.errors import ConfigurationError
from psnode.jobs.job import run
from psnode.records import checkpoint
from psnode.tasks.classification import Classification

SPARSE = ("atomo-entrywise", "randk", "graddrop", "topk", "dgc")
VOTES = ("signsgd", "signum")


@pytest.mark.parametrize("scheme", [name for name in SCHEMES if name not in VOTES])
def test_the_master_has_no_momentum_beside_a_moving_average(scheme: str) -> None:
    assert resolve(Config(scheme=scheme, feedback="ema:beta=0.9")).momentum == 0


@pytest.mark.parametrize("scheme", SPARSE)
def test_the_master_has_no_momentum_beside_dgcs(scheme: str) -> None:
    assert resolve(Config(scheme=scheme, feedback="dgc:momentum=0.9")).momentum == 0
    with pytest.raises(ConfigurationError, match="added to that of feedback dgc"):
        resolve(Config(scheme=scheme, feedback="dgc", momentum=0.5))


def test_the_master_owns_the_momentum_where_the_sender_has_none() -> None:
    assert resolve(Config(scheme="dgc", feedback="ef")).momentum == 0.9
    assert resolve(Config(scheme="polar")).momentum == 0.9


@pytest.mark.parametrize("scheme", ["qsgd", "dense", "topk"])
def test_a_vote_leaves_no_momentum_to_the_master(scheme: str) -> None:
    assert resolve(Config(scheme=scheme, feedback="none", aggregator="majority")).momentum == 0


@pytest.mark.parametrize("fields", [{"scheme": "dgc"}, {"scheme": "signum"}, {"scheme": "topk", "feedback": "ema"}], ids=str)
def test_nesterov_without_a_momentum_on_the_master_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="--nesterov is a form of the master's momentum"):
        resolve(Config(**fields, nesterov=True))


def gradient(model: torch.nn.Module, task: Classification, order: np.ndarray, step: int) -> dict[str, torch.Tensor]:
    """Return the gradient of the step's eight examples, by name."""
    model.zero_grad()
    loss, _ = task.loss(model, task.train_data().batch(order[8 * step : 8 * step + 8], None))
    loss.backward()
    return {name: parameter.grad.detach().clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]


def start() -> tuple[Classification, torch.nn.Module, np.ndarray]:
    """Return task, model and order of the examples as psnode derives them from seed 1."""
    task = Classification("LeNet", "digits", seed=1)
    torch.manual_seed(1)
    source = np.random.SeedSequence((1, int.from_bytes(b"shuf", "big"), 0))
    return task, task.model(), np.random.Generator(np.random.PCG64(source)).permutation(len(task.train_data()))


def trained(train_dir: Path, **changed: Any) -> dict[str, torch.Tensor]:
    """Return the weights after some steps of one worker."""
    settings: dict[str, Any] = {"batch_size": 8, "max_steps": 12, "local": 1, "lr": 0.02, "threads": 1, "tensorboard": False}
    run(Config(train_dir=train_dir, **{**settings, **changed}))
    newest = checkpoint.latest(train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


def assert_close(found: dict[str, torch.Tensor], expected: torch.nn.Module) -> None:
    for name, value in expected.named_parameters():
        assert float((found[name] - value.detach()).abs().max()) < 2e-5, name


def test_a_moving_average_at_the_worker_is_all_the_momentum_there_is(tmp_path: Path) -> None:
    """Compare the weights w with m = .9 m + .1 (g + decay w), w = w - lr m in plain PyTorch, for gradients g."""
    found = trained(tmp_path, scheme="dense", feedback="ema:beta=0.9", weight_decay=0.1)
    task, model, order = start()
    average = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for step in range(12):
        gradients = gradient(model, task, order, step)
        with torch.no_grad():
            for name, value in model.named_parameters():
                average[name].mul_(0.9).add_(gradients[name] + 0.1 * value, alpha=0.1)
                value.sub_(0.02 * average[name])
    assert_close(found, model)


@pytest.mark.parametrize("nesterov", [False, True])
def test_weight_decay_under_dgc_is_gathered_as_torch_does(tmp_path: Path, nesterov: bool) -> None:
    """Compare the weights with those of torch's SGD if all tensors are sent whole: the sender's momentum is then SGD's,
    which accumulates the decay up to tenfold.
    """
    found = trained(
        tmp_path,
        scheme="dgc",
        feedback=f"dgc:momentum=0.9,nesterov={str(nesterov).lower()}",
        weight_decay=0.1,
        min_compress_bytes=1 << 30,
        downlink="dense",
    )
    task, model, order = start()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=0.1, nesterov=nesterov)
    for step in range(12):
        gradients = gradient(model, task, order, step)
        for name, value in model.named_parameters():
            value.grad = gradients[name]
        optimizer.step()
    assert_close(found, model)


def test_gathered_decay_resumes_bit_for_bit(tmp_path: Path) -> None:
    changed: dict[str, Any] = {"scheme": "dgc", "weight_decay": 0.1, "seed": 4}
    whole = trained(tmp_path / "whole", **changed)
    trained(tmp_path / "parts", **changed, max_steps=7)
    parts = trained(tmp_path / "parts", **changed, resume=True)
    assert all(torch.equal(parts[name], value) for name, value in whole.items())


def test_decay_that_adam_divides_cannot_be_gathered_by_the_sender() -> None:
    with pytest.raises(ConfigurationError, match="--weight-decay with adam"):
        resolve(Config(scheme="dgc", optimizer="adam", weight_decay=0.1))
    resolve(Config(scheme="dgc", optimizer="adamw", weight_decay=0.1))
    resolve(Config(scheme="dgc", optimizer="adam"))
