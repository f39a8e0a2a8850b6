"""examples/vit.py: patches compared with slices, dependence on the order of patches, refusals, and learning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from psnode.errors import ConfigurationError
from psnode.task import load_task

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "vit.py")


def make(**options: str):
    return load_task(EXAMPLE, {"dataset": "digits", "width": "16", "layers": "1", **options})


def test_patches_are_the_image_cut_in_squares() -> None:
    torch.manual_seed(0)
    model = make().model()
    images = torch.randn(3, 1, 28, 28)
    seen = model.patches(images).flatten(2).transpose(1, 2)
    corners = [(row, column) for row in range(0, 28, 7) for column in range(0, 28, 7)]
    squares = [images[:, 0, row : row + 7, column : column + 7].flatten(1) for row, column in corners]
    expected = torch.stack(squares, dim=1) @ model.patches.weight.flatten(1).T + model.patches.bias
    torch.testing.assert_close(seen, expected)


def test_positions_tell_patches_apart() -> None:
    torch.manual_seed(0)
    model = make().model().eval()
    images = torch.randn(2, 1, 28, 28)
    assert model(images).shape == (2, 10)
    assert not torch.allclose(model(images), model(images.flip(-1)))


def test_it_learns_digits() -> None:
    torch.manual_seed(0)
    task = make(width="32")
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.005)
    rng = np.random.default_rng(0)
    losses = []
    for _ in range(130):
        loss, _ = task.loss(model, data.batch(rng.integers(len(data), size=64), None))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-10:]) < 0.6 * np.mean(losses[:5])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"patch": "3"}, "patch must divide"),
        ({"width": "18"}, "multiple of 4"),
        ({"layers": "none"}, "whole number"),
        ({"depth": "3"}, "unknown task option"),
    ],
)
def test_settings_that_fit_nothing_are_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make(**options)
