"""Accuracy under DDP's hooks: plain DDP trains like one process on all batches, with a cosine learning rate."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from psnode.bench.contest.contenders import SharedSettings
from psnode.bench.hook_accuracy import run
from psnode.errors import ConfigurationError, TransportError
from psnode.tasks.classification import Classification
from psnode.tasks.data.sampler import Sampler

GROUND = SharedSettings(network="LeNet", dataset="digits", workers=2, batch=16, lr=0.05, seed=3, steps=12)


def expected(ground: SharedSettings) -> float:
    """Return the accuracy of one process that takes all batches in plain PyTorch, with learning rate lr (1 + cos(pi t / T))
    / 2 at step t of T.
    """
    task = Classification(ground.network, ground.dataset, seed=ground.seed)
    torch.manual_seed(ground.seed)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=ground.lr, momentum=0.9)
    shares = [Sampler(len(data), rank, ground.workers, ground.batch, 1, ground.seed) for rank in range(ground.workers)]
    for step in range(1, ground.steps + 1):
        optimizer.param_groups[0]["lr"] = ground.lr * (1 + math.cos(math.pi * (step - 1) / ground.steps)) / 2
        images, labels = data.batch(np.concatenate([share.indices(step)[0] for share in shares]), None)
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
    test = task.eval_data()
    images, labels = test.batch(np.arange(len(test)), None)
    with torch.no_grad():
        return float((model.eval()(images).argmax(1) == labels).float().mean())


@pytest.mark.long
@pytest.mark.serial
@pytest.mark.usefixtures("forks")
def test_plain_ddp_is_as_accurate_as_one_process_and_others_are_compared_with_it() -> None:
    result = run(GROUND, ["fp32", "psnode:identity"], [GROUND.seed], seconds=100)
    plain, hooked = result["rows"]
    assert plain["top1"] == pytest.approx([expected(GROUND)], abs=0.006)  # two examples of 360
    assert hooked["top1"] == pytest.approx(plain["top1"], abs=0.006)
    assert hooked["behind"] == pytest.approx(100 * (plain["mean"] - hooked["mean"]))
    assert plain["behind"] == 0


def test_a_hook_that_does_not_exist_is_refused_before_anything_is_trained() -> None:
    with pytest.raises(ConfigurationError, match="powersgd"):
        run(GROUND, ["fp32", "powersg"], [1])


@pytest.mark.serial
@pytest.mark.usefixtures("forks")
def test_a_process_that_fails_ends_the_measurement(tmp_path: Path) -> None:
    with pytest.raises(TransportError, match="ended with"):
        run(
            SharedSettings(network="LeNet", dataset="MNIST", data_dir=str(tmp_path), workers=1, steps=1),
            ["none"],
            [1],
            seconds=100,
        )
