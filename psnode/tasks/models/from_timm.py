"""Models of timm as networks, `timm:NAME`: untrained, with a last layer for `classes`. Users install timm themselves."""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from psnode.config.names import choose
from psnode.errors import ConfigurationError, in_one_line
from psnode.tasks.models.from_torchvision import check_size
from psnode.tasks.torchvision_ops import import_torchvision


def timm_names() -> tuple[str, ...]:
    """Return the names of timm's models, sorted. Raises ConfigurationError if the package is missing."""
    return tuple(sorted(_timm().list_models()))


def timm_network(name: str, image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes).

    A model for a single image size (a vision transformer) is built for the size in `image_shape`. Raises ConfigurationError for
    an unknown name and for images that the network cannot take.
    """
    timm = _timm()
    name = choose("timm model", name, timm_names())
    settings: dict[str, Any] = {"pretrained": False, "num_classes": classes, "in_chans": image_shape[0]}
    network: nn.Module = timm.create_model(name, **settings)
    try:
        check_size(f"timm:{name}", network.eval(), image_shape)
    except Exception:
        try:
            network = timm.create_model(name, img_size=image_shape[1:], **settings)
            check_size(f"timm:{name}", network.eval(), image_shape)
        except TypeError:
            raise ConfigurationError(
                f"network timm:{name} cannot take images of {image_shape[1]}x{image_shape[2]}: choose another one"
            ) from None
        except (AssertionError, ValueError, RuntimeError) as error:
            raise ConfigurationError(f"network timm:{name} cannot be made for these images: {in_one_line(error)}") from error
    return network.train()


def _timm() -> Any:
    import_torchvision("ops")  # timm imports torchvision, whose compiled operators may be missing
    try:
        return importlib.import_module("timm")
    except ImportError as error:
        raise ConfigurationError("timm: networks need the package timm: pip install timm") from error
