"""`python -m studies.updates`: time of an optimizer step on the master, compared with torch's step and with a copy.

A step reads the sum of gradients and changes weights and moments. All these arrays are outside the cache. The floor is the time
of a copy that reads and writes the same number of bytes as the step, at the rate measured in the same run on one thread.
torch's step updates one tensor at a time (`foreach=False`). Unlike psnode's step, it does not compute the mean, and does not
clear the sum.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from psnode.bench.yardsticks.timing import best_in_turn
from psnode.config import Config
from psnode.config.declaration import option
from psnode.plans.groups import Tensor
from psnode.plans.rule import make_plan
from studies.harness import Column, Found, Study, main

if TYPE_CHECKING:
    from torch import nn

LR, MOMENTUM, DECAY = 1e-3, 0.9, 0.01


class Kind(NamedTuple):
    """An optimizer: its settings, its class in torch, and the bytes per parameter that a step reads and writes."""

    settings: dict[str, Any]
    torchs: str
    floor: int


KINDS = {
    "sgd": Kind({"optimizer": "sgd", "momentum": 0.0}, "SGD", 12),
    "momentum": Kind({"optimizer": "sgd", "momentum": MOMENTUM}, "SGD", 20),
    "adam": Kind({"optimizer": "adam", "momentum": MOMENTUM}, "Adam", 28),
    "adamw": Kind({"optimizer": "adamw", "momentum": MOMENTUM}, "AdamW", 28),
}


class Ours:
    """psnode's steps, as the master takes them. The weights are 1, and the gradient is the mean of two workers' gradients."""

    def __init__(self, name: str, size: int) -> None:
        import torch

        from psnode.exchange.update.parameters import Parameters

        config = Config(lr=LR, weight_decay=DECAY, **KINDS[name].settings)
        plan, self.weight = make_plan([Tensor("weight", (size,))], "identity", group_by="model"), torch.ones(size)
        self._parameters, self._total = Parameters(self.weight, plan, config, config.momentum or 0.0), np.ones(size, np.float32)

    def take(self) -> None:
        """Take a step of psnode's optimizer."""
        self._parameters.update(0, self._total, 0.5, LR)


class Theirs:
    """Torch's steps, with the same optimizer, weights and gradient."""

    def __init__(self, name: str, size: int) -> None:
        import torch

        self.weight = _model(size).weight
        self.weight.grad = torch.full((size,), 0.5)
        inertia = {"momentum": MOMENTUM} if name == "momentum" else {}
        kind = getattr(torch.optim, KINDS[name].torchs)
        self._optimizer = kind([self.weight], lr=LR, weight_decay=DECAY, foreach=False, **inertia)

    def take(self) -> None:
        """Take a step of torch's optimizer."""
        self._optimizer.step()


def _model(size: int) -> nn.Module:
    import torch
    from torch import nn

    model = nn.Module()
    model.weight = nn.Parameter(torch.ones(size))
    return model


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.updates`."""

    optimizer: tuple[str, ...] = option((), "Repeat; default: all.", choices=tuple(KINDS), repeated=True)
    size: int = option(2**24, "Parameters.", minimum=1)
    repeats: int = option(9, "The best of this many, in turn.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row per optimizer.

    `ns`, `torch_ns`: nanoseconds per parameter of psnode's and torch's steps. `gbps`: speed of psnode's step. `floor`: the
    ratio of `ns` to the time of the copy.
    """
    import torch

    names, size = options.optimizer or tuple(KINDS), options.size
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        source, target = np.ones(size, np.float32), np.zeros(size, np.float32)
        actions: dict[str, Callable[[], object]] = {"copy": lambda: np.copyto(target, source)}
        for name in names:
            actions[name], actions[f"torch {name}"] = Ours(name, size).take, Theirs(name, size).take
            actions[name]()  # compile the kernels
        best = {name: took / size for name, took in best_in_turn(actions, options.repeats, 0.0).items()}
    finally:
        torch.set_num_threads(threads)
    rows = [
        {
            "optimizer": name, "ns": best[name], "torch_ns": best[f"torch {name}"], "gbps": KINDS[name].floor / best[name],
            "floor": best[name] / (best["copy"] * KINDS[name].floor / 8),
        }
        for name in names
    ]  # fmt: skip
    return Found(rows, {"copy_gbps": 8 / best["copy"]})


COLUMNS = (
    Column("optimizer", "{optimizer}", left=True),
    Column("ns a parameter", "{ns:.3f}"),
    Column("GB/s", "{gbps:.1f}"),
    Column("over the floor", "{floor:.2f}"),
    Column("torch, ns", "{torch_ns:.3f}"),
)
STUDY = Study(
    Options,
    measure,
    COLUMNS,
    head=lambda result: (
        f"One core; {result['size']:,} parameters, the best of {result['repeats']}. "
        f"A copy reads and writes {result['copy_gbps']:.1f} GB/s."
    ),
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
