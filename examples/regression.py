"""The smallest task: fit a linear map of 20 inputs by least squares.

psnode train --task examples/regression.py --lr 0.1 --max-steps 200
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from psnode.task import Batch, Task


class Points:
    """1024 points (x, y), where x ~ N(0, I) has 20 coordinates and y = x w + noise."""

    def __init__(self, seed: int) -> None:
        weights = np.random.default_rng(0).standard_normal((20, 1))
        rng = np.random.default_rng(seed)
        self.x = rng.standard_normal((1024, 20))
        self.y = self.x @ weights + 0.1 * rng.standard_normal((1024, 1))

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        return tuple(torch.from_numpy(part[indices]).float() for part in (self.x, self.y))


class Regression(Task):
    def model(self) -> torch.nn.Module:
        return torch.nn.Linear(20, 1)

    def train_data(self) -> Points:
        return Points(seed=1)

    def eval_data(self) -> Points:
        return Points(seed=2)

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        predicted = model(x)
        return torch.nn.functional.mse_loss(predicted, y), predicted

    def size(self, batch: Batch) -> int:
        return len(batch[0])
