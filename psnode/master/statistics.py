"""One value for each buffer, out of those that the workers hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.tasks import inventory, names

Tensors = dict[str, torch.Tensor]
_PREFIX = "buffer/"


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


def foreign(buffers: Tensors, model: torch.nn.Module) -> str | None:
    """A buffer of a worker's part that `model` does not have, or has with another dtype, or a norm's of another shape."""
    own, fixed = names.state(model), inventory.norm_statistics(model)
    known = {f"{_PREFIX}{name}": (own[name].dtype, own[name].shape) for name in inventory.persistent_buffers(model)}
    for key, value in buffers.items():
        sized = key in known and key.removeprefix(_PREFIX) not in fixed  # by the model itself
        if known.get(key) != (value.dtype, known[key][1] if sized else value.shape):
            has = "does not have" if key not in known else f"has as {known[key][0]} of shape {tuple(known[key][1])}"
            return f"{key[:200]}, {value.dtype} of shape {tuple(value.shape)}, which the model {has}"
    return None
