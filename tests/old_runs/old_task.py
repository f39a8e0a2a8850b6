"""The task of the recorded runs: a small perceptron on eight blurred classes. The records depend on its exact arithmetic."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from psnode.task import Batch, Task


class Blobs:
    """512 points of 48 coordinates, scattered around eight centres."""

    def __init__(self) -> None:
        rng = np.random.default_rng(5)
        self.y = rng.integers(8, size=512)
        self.x = (rng.standard_normal((8, 48))[self.y] + rng.standard_normal((512, 48))).astype(np.float32)

    def __len__(self) -> int:
        return len(self.x)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        return torch.from_numpy(self.x[indices]), torch.from_numpy(self.y[indices])


class OldTask(Task):
    def model(self) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(48, 64), torch.nn.ReLU(), torch.nn.Linear(64, 32), torch.nn.Linear(32, 8))

    def train_data(self) -> Blobs:
        return Blobs()

    def eval_data(self) -> Blobs:
        return Blobs()

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = batch
        logits = model(x)
        return torch.nn.functional.cross_entropy(logits, y), logits

    def size(self, batch: Batch) -> int:
        return len(batch[1])
