"""A task whose passes take drawn times, for `python -m studies.stopped_worker`.

Options, as --task-option KEY=VALUE
    seconds  mean duration of a pass
    jitter   standard deviation of the logarithm of the durations
    seed     of the durations
    begun    a file to which every rank appends a line at its first pass: its rank, and the seconds since 1970

A forward pass waits after its first layer for `seconds` times a factor that psnode.jobs.simulating.disturbances draws: the first
batch of a rank has the first factor, also if several passes use it, the second one the second. A process that is stopped by a
signal meanwhile waits as much longer as it is stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

import psnode
from psnode.jobs.simulating.disturbances import Spread
from psnode.task import Batch, Task

SLICE = 0.002  # seconds of a sleep; of a stop, at most twice this time counts as waited
WIDTH = 32


class Paced(torch.nn.Module):
    """A linear layer, after which the forward pass waits for `seconds` times the factor of the batch."""

    def __init__(self, seconds: float, factor: Callable[[torch.Tensor], float]) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)
        self._seconds, self._factor = seconds, factor

    def forward(self, x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        wait(self._seconds * self._factor(indices))
        return y


def wait(seconds: float) -> None:
    """Sleep for `seconds`, without the time during which this process is stopped."""
    left = seconds
    while left > 0:
        began = time.perf_counter()
        time.sleep(min(SLICE, left))
        left -= min(time.perf_counter() - began, 2 * SLICE)


class PacedTask(Task):
    """Batches of ones, and the mean square of the layer's output as loss."""

    def __init__(self, options: Mapping[str, str] = {}) -> None:  # it is not changed
        super().__init__()
        self._seconds, self._begun = float(options.get("seconds", 0.2)), options.get("begun")
        self._draw = Spread(float(options.get("jitter", 0)), (), int(options.get("seed", 1))).factors(psnode.rank())
        self._factors = dict[tuple[int, ...], float]()

    def model(self) -> Paced:
        return Paced(self._seconds, self.factor)

    def factor(self, indices: torch.Tensor) -> float:
        """Return the factor of the batch of these examples. For the first batch, write to `begun`."""
        key = tuple(indices.tolist())
        if key not in self._factors:
            if self._begun and not self._factors:
                with Path(self._begun).open("a") as file:
                    file.write(f"{psnode.rank()} {time.time()}\n")
            self._factors[key] = self._draw()
        return self._factors[key]

    def train_data(self) -> PacedTask:
        """Return this object as the data set."""
        return self

    eval_data = train_data

    def __len__(self) -> int:
        return 1 << 20

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """Return ones, and the indices."""
        return torch.ones(len(indices), WIDTH), torch.from_numpy(np.asarray(indices, np.int64))

    def size(self, batch: Batch) -> int:
        """Return the number of examples."""
        return len(batch[0])

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, None]:
        """Return the loss, and no outputs."""
        return (model(*batch) ** 2).mean(), None
