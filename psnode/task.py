"""What is trained: the one class a user writes to bring a model and data of their own.

The networks and data sets that come with psnode are such a Task themselves (`psnode.classification`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

# A batch is whatever Data.batch returns and the Task's own methods understand; tensors inside tuples, lists
# and dicts are moved to the training device.
Batch = Any


@runtime_checkable
class Data(Protocol):
    """A finite set of examples that hands out whole batches."""

    def __len__(self) -> int:
        """Number of examples."""
        ...

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        """The examples at `indices` (1-D, values in 0..len-1), collated on the CPU.

        `rng` drives augmentation and is None in evaluation. The same indices and an equally seeded
        rng must give the same batch: that is what makes a resumed run exact. Called from a
        background thread, one call at a time.
        """
        ...


class Task(ABC):
    """Model, data, loss and metrics. Every rank constructs its own copy and must get the same model shape.

    `options` are the `--task-option KEY=VALUE` settings, as strings.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        self.options = dict(options or {})

    @abstractmethod
    def model(self) -> torch.nn.Module:
        """A new model in float32. torch's generator is seeded before the call, equally on every rank."""

    @abstractmethod
    def train_data(self) -> Data:
        """The examples that workers draw their shards from; the same on every rank."""

    @abstractmethod
    def eval_data(self) -> Data:
        """The examples that the evaluator measures; only it loads them."""

    @abstractmethod
    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, Any]:
        """The mean loss of `batch` as a float32 scalar tensor with a graph, and the outputs for `metrics`."""

    def metrics(self, outputs: Any, batch: Batch) -> dict[str, float]:
        """SUMS over the batch of whatever is worth following, e.g. {"top1": number right}; divided by `size` later."""
        return {}

    @abstractmethod
    def size(self, batch: Batch) -> int:
        """The number of examples (tokens, ...) in `batch` that loss and metrics are averages or sums over."""
