"""One value for each buffer, out of those that the workers hold."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from psnode.tasks import inventory

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
        name, held = key.removeprefix(_PREFIX), [state[key] for _, state in sorted(states.items()) if key in state]
        match rules.get(name):
            case inventory.MEAN:
                found[name] = torch.stack(held).mean(0)
            case inventory.MAXIMUM:
                found[name] = torch.stack(held).amax(0)
            case _:
                found[name] = held[0]
                if any(other.dtype != held[0].dtype or inventory.bits(other) != inventory.bits(held[0]) for other in held[1:]):
                    differing.append(name)
    return found, differing


def foreign(buffers: Tensors, model: torch.nn.Module) -> str | None:
    """A buffer of a worker's part that `model` does not have, or has with another dtype or shape, and its own."""
    own = model.state_dict()
    known = {f"{_PREFIX}{name}": (own[name].dtype, own[name].shape) for name in inventory.persistent_buffers(model)}
    for key, value in buffers.items():
        if known.get(key) != (value.dtype, value.shape):
            has = "does not have" if key not in known else f"has as {known[key][0]} of shape {tuple(known[key][1])}"
            return f"{key[:200]}, {value.dtype} of shape {tuple(value.shape)}, which the model {has}"
    return None
