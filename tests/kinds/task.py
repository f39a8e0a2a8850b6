"""A task for one model of tests.kinds, or for several models side by side."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

import psnode
from psnode import Config
from psnode.exchange.shard.downlink import Downlink
from psnode.exchange.weights_receiver import Receiver
from psnode.records import checkpoint
from psnode.task import Batch, Task
from tests.kinds.models import CLASSES, WIDTH, Chain
from tests.kinds.table import KINDS


class Points:
    """`count` random points; a batch is sorted by index, so a batch of all points always has the same order."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(3)
        self._x = rng.standard_normal((count, WIDTH)).astype(np.float32)
        self._y = rng.integers(CLASSES, size=count)

    def __len__(self) -> int:
        return len(self._x)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> Batch:
        chosen = np.sort(indices)
        return torch.from_numpy(self._x[chosen]), torch.from_numpy(self._y[chosen])


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Return the model's own loss if it has one, else the cross entropy of its output."""
    own: Any = getattr(model, "loss", None)
    return own(x, y) if own is not None else functional.cross_entropy(model(x).float(), y)


def torch_steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, examples: int, steps: int, then: Callable[[], object]
) -> dict[str, torch.Tensor]:
    """Train in plain PyTorch on all of Points for `steps` steps, call `then` after each, and return the parameters."""
    batch = Points(examples).batch(np.arange(examples), None)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, *batch).backward()
        optimizer.step()
        then()
    return {name.replace("_orig_mod.", ""): weight.detach() for name, weight in model.named_parameters()}


def weights_after(task: Task, config: Config) -> dict[str, torch.Tensor]:
    """Run `task` with `config`, and return the tensors of the model in the last checkpoint."""
    assert psnode.run(task, config) == 0 and config.train_dir is not None
    newest = checkpoint.latest(config.train_dir)
    assert newest is not None
    return checkpoint.Checkpoint.open(newest).tensors(checkpoint.MODEL)


class Trains(Task):
    """Trains the model that `make` builds, on Points."""

    def __init__(self, make: Callable[[], nn.Module], examples: int) -> None:
        super().__init__()
        self._make, self._examples = make, examples

    def model(self) -> nn.Module:
        return self._make()

    def train_data(self) -> Points:
        return Points(self._examples)

    def eval_data(self) -> Points:
        return Points(self._examples)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, None]:
        return loss_of(model, *batch), None

    def size(self, batch: Batch) -> int:
        return len(batch[1])


class Constrained(Trains):
    """Trains a model whose `constrain()`, if any, is the task's constraint."""

    def constrain(self, model: Any) -> None:
        getattr(model, "constrain", lambda: None)()


class SideBySide(nn.Module):
    """Independent models, evaluated one after another; the loss is the mean of their losses."""

    def __init__(self, models: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.names = list(models)
        self.members = nn.ModuleList(models.values())

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([loss_of(model, x, y) for model in self.members]).mean()

    def constrain(self) -> None:
        for model in self.members:
            getattr(model, "constrain", lambda: None)()


class Many(Constrained):
    """Rows of the table side by side: those with the verdict of option `verdict`, or those listed in option `kinds`,
    separated by commas.

    With option `seed`, the model is a Chain drawn from it. With option `slow`, every frame of weights leaves that many
    seconds late. With option `uses`, each worker appends a byte to its own file in that folder for each use of a weight that
    had to wait.
    """

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(self._build, 32)
        self.options = dict(options or {})
        if slow := float(self.options.get("slow", 0)):
            _slow_down(slow)
        if folder := self.options.get("uses"):
            _note_waits(Path(folder))

    def _build(self) -> nn.Module:
        if "seed" in self.options:
            return Chain(int(self.options["seed"]), self.options["verdict"])
        if "kinds" in self.options:
            return SideBySide({kind.name: kind.make() for kind in KINDS if kind.name in self.options["kinds"].split(",")})
        return SideBySide({kind.name: kind.make() for kind in KINDS if kind.verdict == self.options["verdict"]})


def _slow_down(seconds: float) -> None:
    """Delay the master's frames by `seconds`, as a slow downlink does, so that weights arrive one by one."""
    post = Downlink._post

    def late(self: Downlink, *arguments: Any, **named: Any) -> int:
        time.sleep(seconds)
        return post(self, *arguments, **named)

    Downlink._post = late  # type: ignore[method-assign]


def _note_waits(folder: Path) -> None:
    """Have each process append a byte to its own file in `folder` for every use of a weight that had to wait."""
    require = Receiver.require

    def noted(self: Receiver, start: int, stop: int) -> None:
        before = self.waited
        require(self, start, stop)
        if self.waited > before:
            with (folder / str(os.getpid())).open("ab") as file:
                file.write(b".")

    Receiver.require = noted  # type: ignore[method-assign]
