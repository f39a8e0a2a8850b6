"""The workers' buffers, batch-norm statistics among them: what a checkpoint holds of them, of all workers together."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.master.events import Events
from psnode.master.statistics import combined
from psnode.records import tensorfile

Tensors = dict[str, torch.Tensor]


class WorkerBuffers:
    """The mean of each by `rules` (psnode.master.statistics), as last known: of `version`, at first that of the start."""

    def __init__(self, rules: Mapping[str, str], events: Events, version: int) -> None:
        self._rules, self._events = rules, events
        self._differing = set[str]()  # buffers of which that was told
        self.means: Tensors = {}
        self.version = version

    @property
    def part(self) -> bytes:
        """They as a part that holds nothing else; empty if there are none."""
        return tensorfile.dump({f"buffer/{name}": value for name, value in self.means.items()}) if self.means else b""

    def combine(self, version: int, states: Mapping[int, Tensors], *, there: bool) -> None:
        """Take the mean of what workers have handed in; tell if no worker has, and the model has some (`there`)."""
        if states:
            self.means, self.version = self._combined(version, states) or self.means, version
        elif there:
            reason = f"no worker's part of the checkpoint has come: its buffers are those of step {self.version}"
            self._events.tell("old buffers", version, None, reason)

    def _combined(self, version: int, states: Mapping[int, Tensors]) -> Tensors:
        """Combine the workers' buffers. Buffers that should be the same everywhere and are not are told, once each."""
        found, differing = combined(states, self._rules)
        for name in differing:
            if name not in self._differing:
                self._differing.add(name)
                self._events.tell(
                    "differs", version, min(states),
                    f"buffer {name} is not the same on every worker: the checkpoint holds that of rank {min(states)}; "
                    "a statistic is to be named in Task.statistics",
                )  # fmt: skip
        return found
