"""torch's optimizers on the master, one for each group, over ranges of coordinates."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from psnode.codecs.arrays import Floats
from psnode.exchange.shard.updates import Pace, Stretch, Tensors, Update
from psnode.plan.groups import Plan
from psnode.records import layout
from psnode.records.layout import Run

_ADAMS = ("exp_avg", "exp_avg_sq")  # as torch calls them


class TorchUpdate(Update):
    """Adam and AdamW. A range has one count of steps, and one pace."""

    def __init__(self, weights: torch.Tensor, plan: Plan, paces: Sequence[Pace], parts: Sequence[Sequence[Stretch]]) -> None:
        super().__init__(weights, plan, paces, parts)
        self.memories = {name: torch.zeros(plan.size) for name in _ADAMS}
        self._ranges: list[list[tuple[Stretch, nn.Parameter]]] = []
        self._optimizers: list[torch.optim.Optimizer | None] = []
        self._begin([Run(0, plan.size, 0)])

    def _begin(self, runs: Sequence[Run]) -> None:
        """Make the optimizers anew; each coordinate has been updated as often as `runs` say."""
        self._ranges, self._optimizers = [], []
        for parts in self.parts:
            cut = [(part.pace, run) for part in parts for run in layout.within(runs, part)]
            counted = [(Stretch(run.start, run.stop, pace), run.value) for pace, run in cut]
            ranges = [(where, nn.Parameter(self.weights[where.start : where.stop])) for where, _ in counted]
            self._ranges.append(ranges)
            self._optimizers.append(self._over(ranges) if ranges else None)
            for (where, parameter), (_, count) in zip(ranges, counted, strict=True):
                memories = {name: vector[where.start : where.stop] for name, vector in self.memories.items()}
                self._optimizers[-1].state[parameter] = {layout.STEP: torch.tensor(float(count)), **memories}  # type: ignore[union-attr]

    def _over(self, ranges: Sequence[tuple[Stretch, nn.Parameter]]) -> torch.optim.Optimizer:
        groups = []
        for index in sorted({where.pace for where, _ in ranges}):
            config, momentum, factor = self.paces[index]
            own: dict[str, Any] = {"weight_decay": config.weight_decay, "betas": (momentum, config.beta2), "eps": config.eps}
            groups.append({"params": [parameter for where, parameter in ranges if where.pace == index], "factor": factor, **own})
        config = self.paces[0].config
        kind = torch.optim.Adam if config.optimizer == "adam" else torch.optim.AdamW
        return kind(groups, lr=config.lr or 0.0, foreach=False)

    def step(self, group: int, total: Floats, factor: float, lr: float, idle: Sequence[slice]) -> None:
        """Adam's count of steps is the range's, idle or not."""
        optimizer, begin = self._optimizers[group], self.plan.groups[group].start
        if optimizer is None:
            return
        with self._unmoved(group, idle):
            gradient = torch.from_numpy(total)
            gradient = gradient.mul_(factor) if factor != 1 else gradient
            for each in optimizer.param_groups:
                each["lr"] = lr * each["factor"]
            for where, parameter in self._ranges[group]:
                parameter.grad = gradient[where.start - begin : where.stop - begin]
            optimizer.step()
            optimizer.zero_grad()
            total[:] = 0

    @contextlib.contextmanager
    def _unmoved(self, group: int, idle: Sequence[slice]) -> Iterator[None]:
        """Put weights and memories in `idle` back."""
        where = slice(self.plan.groups[group].start, self.plan.groups[group].stop)
        vectors = [vector[where] for vector in (self.weights, *self.memories.values())]
        before = [[vector[part].clone() for part in idle] for vector in vectors]
        yield
        for vector, values in zip(vectors, before, strict=True):
            for part, value in zip(idle, values, strict=True):
                vector[part] = value

    def state(self) -> Tensors:
        """The memories, and the counts of steps, which are no views."""
        runs = [
            Run(where.start, where.stop, optimizer.state[parameter][layout.STEP].item())
            for ranges, optimizer in zip(self._ranges, self._optimizers, strict=True)
            if optimizer is not None
            for where, parameter in ranges
        ]
        counts = layout.spread(self.plan, runs, torch.float32)
        return super().state() | {f"{layout.STEP}/{key}": value for key, value in counts.items()}

    def load(self, optimizer: Tensors) -> None:
        super().load(optimizer)
        self._begin(layout.collected(self.plan, optimizer, f"{layout.STEP}/"))

    def _counts(self, name: str) -> bool:
        return name == layout.STEP
