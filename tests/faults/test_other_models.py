"""Runs that are resumed with another model: refused with a one-line error that names the parameter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import psnode
from psnode.config import Config
from psnode.errors import ConfigurationError
from tests.kinds.models import CLASSES, WIDTH
from tests.kinds.task import Trains


def net(hidden: int = 8) -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, CLASSES))


def frozen() -> nn.Module:
    model = net()
    model[0].bias.requires_grad_(False)
    return model


def longer() -> nn.Module:
    return nn.Sequential(*net(), nn.Linear(CLASSES, CLASSES))


def train(folder: Path, make: Callable[[], nn.Module], **settings: Any) -> int:
    known = {"scheme": "dense", "lr": 0.1, "batch_size": 8, "local": 1, "tensorboard": False, "threads": 1}
    return psnode.run(Trains(make, 8), Config(train_dir=folder, **{**known, **settings}))


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (net, lambda: net(9), r"2\.weight is of shape \(4, 8\) there and \(4, 9\) now"),
        (net, frozen, r"0\.bias is trained there and not now"),
        (frozen, net, r"0\.bias is trained now and not there"),
        (net, longer, r"3\.weight is trained now and not there"),
    ],
    ids=["another shape", "frozen", "unfrozen", "a new layer"],
)
def test_another_model_is_refused_by_the_name_of_the_parameter(
    before: Callable[[], nn.Module], after: Callable[[], nn.Module], text: str, tmp_path: Path
) -> None:
    assert train(tmp_path, before, max_steps=2) == 0
    with pytest.raises(ConfigurationError, match=text) as caught:
        train(tmp_path, after, max_steps=4, resume=True)
    assert "\n" not in str(caught.value)
    assert train(tmp_path, before, max_steps=4, resume=True) == 0
