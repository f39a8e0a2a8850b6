"""Classifiers of torchvision as networks, `torchvision:NAME`: untrained, with a last layer for `classes`."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import nn

from psnode.config.names import choose
from psnode.errors import ConfigurationError
from psnode.tasks.torchvision_ops import import_torchvision

_SIDES = (16, 28, 32, 48, 64, 96, 128, 224, 256, 299, 384)

# Without these settings both networks would return two extra outputs in training, and warn about their initialisation.
_SETTINGS: dict[str, dict[str, object]] = {
    "googlenet": {"aux_logits": False, "init_weights": True},
    "inception_v3": {"aux_logits": False, "init_weights": True},
}


def torchvision_names() -> tuple[str, ...]:
    """Return the names of torchvision's classifiers, sorted."""
    models = import_torchvision("models")
    return tuple(models.list_models(module=models))


def torchvision_network(name: str, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes).

    Raises ConfigurationError for an unknown name and for images that the network cannot take.
    """
    models = import_torchvision("models")
    name = choose("torchvision network", name, torchvision_names())
    if image_shape[0] != 3:
        raise ConfigurationError(
            f"network torchvision:{name} takes images of 3 channels, but the data set's have {image_shape[0]}: "
            "choose another network (lenet, resnet-18, ...) or data set"
        )
    settings: dict[str, Any] = {"weights": None, "num_classes": classes, **_SETTINGS.get(name, {})}
    network: nn.Module = models.get_model(name, **settings)
    check_size(f"torchvision:{name}", network.eval(), image_shape)
    return network.train()


def check_size(name: str, network: nn.Module, image_shape: tuple[int, int, int]) -> None:
    """Raise ConfigurationError if the network cannot take images of shape `image_shape`.

    The message states sizes that it can take. If it can take no usual size, raises the network's own exception.
    """
    error = _failure(network, image_shape)
    if error is None:
        return
    sides = [side for side in _SIDES if _failure(network, (image_shape[0], side, side)) is None]
    if not sides:
        raise error
    height, width = image_shape[1:]
    raise ConfigurationError(
        f"network {name} cannot take images of {height}x{width}: of the square images with sides "
        f"{', '.join(map(str, _SIDES))} it takes {', '.join(map(str, sides))}"
    )


def _failure(network: nn.Module, image_shape: tuple[int, int, int]) -> Exception | None:
    """Return the exception that the network raises for one image, or None.

    The network runs on the meta device, which computes only shapes.
    """
    tensors = itertools.chain(network.named_parameters(), network.named_buffers())
    shapes = {key: torch.empty_like(tensor, device="meta") for key, tensor in tensors}
    try:
        with torch.no_grad():
            torch.func.functional_call(network, shapes, torch.empty((1, *image_shape), device="meta"))
    except Exception as error:  # each family raises a different exception for a size that it cannot take
        return error
    return None
