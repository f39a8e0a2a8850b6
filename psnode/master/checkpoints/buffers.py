"""The combination of the workers' buffers, such as batch-norm statistics, into one value per buffer for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.master.events import Events
from psnode.records import tensorfile
from psnode.tasks import model_tensors, tensor_names

Tensors = dict[str, torch.Tensor]
_PREFIX = "buffer/"


class WorkerBuffers:
    """The last known buffers of the workers, combined by `rules` (see `combined`).

    `means`: the combined buffers by name, empty at first. `version`: the version of these buffers, at first the initial version.
    """

    def __init__(self, rules: Mapping[str, str], events: Events, version: int) -> None:
        self._rules, self._events = rules, events
        self._differing = set[str]()  # buffers already reported as different between workers
        self.means: Tensors = {}
        self.version = version

    @property
    def part(self) -> bytes:
        """The bytes of a part of a checkpoint, as workers send it, that holds only the combined buffers.

        Empty if there are no buffers.
        """
        return tensorfile.dump({f"{_PREFIX}{name}": value for name, value in self.means.items()}) if self.means else b""

    def combine(self, version: int, states: Mapping[int, Tensors], *, there: bool) -> None:
        """Combine the buffers in the workers' `states`, by rank, for the checkpoint of `version`.

        `there`: True if the model has buffers. If it has, but no worker's state has come, report this and keep the old
        buffers.
        """
        if states:
            self.means, self.version = self._combined(version, states) or self.means, version
        elif there:
            reason = f"no worker's part of the checkpoint has come: its buffers are those of step {self.version}"
            self._events.tell("old buffers", version, None, reason)

    def _combined(self, version: int, states: Mapping[int, Tensors]) -> Tensors:
        """Return the combined buffers. Report once each buffer that differs although it should be the same on every worker."""
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
    """Return the buffers for a checkpoint, and the names of buffers that differ although every worker should have the same.

    `states`: the buffers in each worker's part, by rank. A buffer named in `rules` is a statistic, and its mean or maximum over
    the workers is returned. Every other buffer is copied from the lowest rank whose buffer is not empty. A worker's buffer with
    another shape than this one is left out, and its name is among those that differ.
    """
    found: Tensors = {}
    differing = []
    first = states[min(states)] if states else {}
    for key in first:
        name, every = key.removeprefix(_PREFIX), [state[key] for _, state in sorted(states.items()) if key in state]
        shape = next((value for value in every if value.numel()), every[0]).shape
        held = [value for value in every if value.shape == shape]  # other sizes follow from a worker's own data
        if len(held) < len(every):
            differing.append(name)
        match rules.get(name):
            case model_tensors.MEAN:
                found[name] = torch.stack(held).mean(0)
            case model_tensors.MAXIMUM:
                found[name] = torch.stack(held).amax(0)
            case _:
                found[name] = held[0]
                alike = (
                    other.dtype is held[0].dtype and model_tensors.bits(other) == model_tensors.bits(held[0])
                    for other in held[1:]
                )
                if name not in differing and not all(alike):
                    differing.append(name)
    return found, differing


def unknown_buffer(buffers: Tensors, model: torch.nn.Module) -> str | None:
    """Return a text about the first of a worker's `buffers` that does not fit `model`, or None if all of them fit.

    A buffer fits if the model has a buffer of the same name and dtype. The statistics of norms must also have the same
    shape. Other buffers may have any shape, since models may size them by their data.
    """
    own, fixed = tensor_names.state(model), model_tensors.norm_statistics(model)
    known = {f"{_PREFIX}{name}": (own[name].dtype, own[name].shape) for name in model_tensors.persistent_buffers(model)}
    for key, value in buffers.items():
        sized = key in known and key.removeprefix(_PREFIX) not in fixed  # its size may be chosen by the model
        if known.get(key) != (value.dtype, known[key][1] if sized else value.shape):
            has = "does not have" if key not in known else f"has as {known[key][0]} of shape {tuple(known[key][1])}"
            return f"{key[:200]}, {value.dtype} of shape {tuple(value.shape)}, which the model {has}"
    return None
