"""Detection of parameters that a loss depends on but no optimizer trains, for example those of a criterion outside the model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from psnode.errors import ConfigurationError

_ALWAYS = 8  # first passes, all of which are checked
_PARTS = 100  # entries of a list or dictionary that are searched for a name


class Reach:
    """Detects parameters in a loss's graph that are not in `known`. `remedy`: advice for the error message.

    The first eight backward passes are checked, then the 16th, the 32nd, and so on. The loss may change during a run, but a walk
    through the graph takes time.
    """

    def __init__(self, known: Iterable[nn.Parameter], remedy: str) -> None:
        self._known = {id(parameter) for parameter in known}
        self._remedy, self._passes = remedy, 0

    def look(self, losses: Sequence[torch.Tensor], trained: Collection[int], places: Iterable[Mapping[str, Any]]) -> None:
        """Raise ConfigurationError for an unknown parameter in the graph of `losses`.

        The message contains the parameter's name, if it is found in `places`. `trained`: ids of the trained parameters. If
        the graph contains no trained parameter, the pass is not checked.
        """
        self._passes += 1
        if self._passes > _ALWAYS and self._passes & (self._passes - 1):
            return
        leaves = list(parameters_of(losses))
        foreign = [leaf for leaf in leaves if id(leaf) not in self._known]
        if foreign and any(id(leaf) in trained for leaf in leaves):
            shape = "x".join(map(str, foreign[0].shape)) or "one number"
            raise ConfigurationError(
                f"the loss reaches {name_of(foreign[0], places) or 'a parameter'} ({shape}), a parameter, but not the model's: "
                f"no step would train it: {self._remedy}"
            )


def parameters_of(losses: Sequence[torch.Tensor]) -> Iterator[nn.Parameter]:
    """Yield, without repetition, the parameters that get a gradient in a backward pass from `losses`. Omit other leaf tensors."""
    nodes = [torch.autograd.graph.get_gradient_edge(loss).node for loss in losses if loss.requires_grad]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if isinstance(leaf := getattr(node, "variable", None), nn.Parameter):
            yield leaf
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)


def name_of(parameter: nn.Parameter, places: Iterable[Mapping[str, Any]]) -> str:
    """Return the name of `parameter` in `places`; "" if it is not found.

    A place is a mapping of variables or attributes. Modules and containers in a place are searched too.
    """
    for place in places:
        for name, value in list(place.items()):
            if not name.startswith("__") and (found := _inside(name, value, parameter, depth=2)):
                return found
    return ""


def _inside(name: str, value: Any, parameter: nn.Parameter, depth: int) -> str:
    if value is parameter:
        return name
    if isinstance(value, nn.Module):
        inside = (inner for inner, own in value.named_parameters(remove_duplicate=False) if own is parameter)
        return next((f"{name}.{inner}" for inner in inside), "")
    if not depth or isinstance(value, (type, torch.Tensor)):
        return ""
    parts: Iterable[tuple[str, Any]] = ()
    if isinstance(value, (list, tuple)):
        parts = ((f"{name}[{index}]", part) for index, part in enumerate(value[:_PARTS]))
    elif isinstance(value, dict):
        parts = ((f"{name}[{key!a}]", part) for key, part in list(value.items())[:_PARTS])
    elif type(value).__module__ not in ("builtins", "types") and isinstance(own := getattr(value, "__dict__", None), dict):
        parts = ((f"{name}.{key}", part) for key, part in list(own.items())[:_PARTS])
    return next((found for inner, part in parts if (found := _inside(inner, part, parameter, depth - 1))), "")
