"""The networks that come with psnode, by name.

    build("ResNet18", (3, 32, 32), 10)          one of networks(); case, hyphens and underscores do not matter
    build("torchvision:resnet18", ...)          torchvision's network of that name
    build("timm:resnet18d", ...)                timm's network of that name

The module of a network, and torch with it, is imported when the network is built.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psnode.config.names import choose
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch

__all__ = ["build", "check", "networks", "resolve"]

_TORCHVISION, _TIMM = "torchvision:", "timm:"


@dataclass(frozen=True)
class _Network:
    """A network: `function` of the module psnode.tasks.models.`function`, with `arguments`.

    `smallest` is the minimum height and width of an image.
    """

    function: str
    smallest: int
    arguments: Mapping[str, object] = field(default_factory=dict)


_NETWORKS: Mapping[str, _Network] = {
    "lenet": _Network("lenet", 16),
    "fc": _Network("fc", 1),
    **{f"resnet-{depth}": _Network("resnet", 8, {"depth": depth}) for depth in (18, 34, 50, 101, 152)},
    **{f"resnet-{depth}": _Network("resnet_cifar", 4, {"depth": depth}) for depth in (20, 32, 56, 110)},
    **{f"vgg-{depth}": _Network("vgg", 32, {"depth": depth}) for depth in (11, 13, 16, 19)},
    "alexnet": _Network("alexnet", 29),
    "densenet": _Network("densenet", 4, {"depth": 100, "growth": 12, "compact": True}),
    "densenet-40": _Network("densenet", 4, {"depth": 40, "growth": 12, "compact": False}),
    "densenet-190": _Network("densenet", 4, {"depth": 190, "growth": 40, "compact": True}),
}


def networks() -> tuple[str, ...]:
    """Return the names of the built-in networks, sorted."""
    return tuple(sorted(_NETWORKS))


def resolve(name: str) -> str:
    """Return the canonical name of a network, such as "resnet-18" for "ResNet18". Raises ConfigurationError for an unknown
    name."""
    if name.lower().startswith(_TORCHVISION):
        from psnode.tasks.models.from_torchvision import torchvision_names

        return _TORCHVISION + choose("torchvision network", name[len(_TORCHVISION) :], torchvision_names())
    if name.lower().startswith(_TIMM):
        from psnode.tasks.models.from_timm import timm_names

        return _TIMM + choose("timm model", name[len(_TIMM) :], timm_names())
    return choose("network", name, _NETWORKS, remark=", and torchvision:NAME and timm:NAME for those of these packages")


def check(name: str, image_shape: tuple[int, int, int]) -> None:
    """Raise ConfigurationError if the network `name` is unknown or cannot take images of shape `image_shape`.

    Built-in networks are checked without importing torch. For networks of torchvision and timm only the name is checked
    here; `build` checks the size.
    """
    name = resolve(name)
    if name.startswith((_TORCHVISION, _TIMM)):
        return
    height, width = image_shape[1:]
    smallest = _NETWORKS[name].smallest
    if min(height, width) < smallest:
        fitting = [other for other in networks() if _NETWORKS[other].smallest <= min(height, width)]
        raise ConfigurationError(
            f"network {name} takes images of at least {smallest}x{smallest}, but the data set's are {height}x{width}: "
            f"choose another data set, or one of the networks {', '.join(fitting)}"
        )


def build(name: str, image_shape: tuple[int, int, int], classes: int) -> torch.nn.Module:
    """Return a new network `name` in float32, with weights drawn from torch's generator.

    It maps images (batch, channels, height, width) float32 to logits (batch, classes). Raises ConfigurationError like `check`.
    """
    check(name, image_shape)
    name = resolve(name)
    if name.startswith(_TORCHVISION):
        from psnode.tasks.models.from_torchvision import torchvision_network

        return torchvision_network(name[len(_TORCHVISION) :], image_shape, classes)
    if name.startswith(_TIMM):
        from psnode.tasks.models.from_timm import timm_network

        return timm_network(name[len(_TIMM) :], image_shape, classes)
    network = _NETWORKS[name]
    module = importlib.import_module(f"psnode.tasks.models.{network.function}")
    model: torch.nn.Module = getattr(module, network.function)(image_shape, classes, **network.arguments)
    return model
