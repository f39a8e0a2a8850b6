"""The workers' buffers, batch-norm statistics among them, combined into one value each for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.master.events import Events
from psnode.records import tensorfile
from psnode.tasks import inventory, tensor_names

Tensors = dict[str, torch.Tensor]
_PREFIX = "buffer/"


class WorkerBuffers:
    """The mean of each by `rules` (`combined`), as last known: of `version`, at first that of the start."""

    def __init__(self, rules: Mapping[str, str], events: Events, version: int) -> None:
        self._rules, self._events = rules, events
        self._differing = set[str]()  # buffers of which that was told
        self.means: Tensors = {}
        self.version = version

    @property
    def part(self) -> bytes:
        """They as a part that holds nothing else; empty if there are none."""
        return tensorfile.dump({f"{_PREFIX}{name}": value for name, value in self.means.items()}) if self.means else b""

    def combine(self, version: int, states: Mapping[int, Tensors], *, there: bool) -> None:
        """Take the mean of the workers' `states`; tell if none has come although the model has buffers (`there`)."""
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


def combined(states: Mapping[int, Tensors], rules: Mapping[str, str]) -> tuple[Tensors, list[str]]:
    """The buffers of a checkpoint out of the workers' parts, by rank; and those that should be the same everywhere and are not.

    Those that `rules` names are statistics: their mean or maximum. Every other one is that of the lowest rank, to the bit.
    """
    found: Tensors = {}
    differing = []
    first = states[min(states)] if states else {}
    for key in first:
        name, every = key.removeprefix(_PREFIX), [state[key] for _, state in sorted(states.items()) if key in state]
        shape = next((value for value in every if value.numel()), every[0]).shape
        held = [value for value in every if value.shape == shape]  # others sized it by their own data, or not at all
        if len(held) < len(every):
            differing.append(name)
        match rules.get(name):
            case inventory.MEAN:
                found[name] = torch.stack(held).mean(0)
            case inventory.MAXIMUM:
                found[name] = torch.stack(held).amax(0)
            case _:
                found[name] = held[0]
                alike = (other.dtype is held[0].dtype and inventory.bits(other) == inventory.bits(held[0]) for other in held[1:])
                if name not in differing and not all(alike):
                    differing.append(name)
    return found, differing


def unknown_buffer(buffers: Tensors, model: torch.nn.Module) -> str | None:
    """A buffer of a worker's part that `model` does not have, or has with another dtype, or a norm's of another shape."""
    own, fixed = tensor_names.state(model), inventory.norm_statistics(model)
    known = {f"{_PREFIX}{name}": (own[name].dtype, own[name].shape) for name in inventory.persistent_buffers(model)}
    for key, value in buffers.items():
        sized = key in known and key.removeprefix(_PREFIX) not in fixed  # by the model itself
        if known.get(key) != (value.dtype, known[key][1] if sized else value.shape):
            has = "does not have" if key not in known else f"has as {known[key][0]} of shape {tuple(known[key][1])}"
            return f"{key[:200]}, {value.dtype} of shape {tuple(value.shape)}, which the model {has}"
    return None
