"""A fully connected network with two hidden layers of 800 and 500 units."""

from __future__ import annotations

import math
from collections import OrderedDict

from torch import nn


def fc(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32, of any size, to logits (batch, classes)."""
    layers: dict[str, nn.Module] = {
        "flatten": nn.Flatten(),
        "fc1": nn.Linear(math.prod(image_shape), 800),
        "relu1": nn.ReLU(),
        "fc2": nn.Linear(800, 500),
        "relu2": nn.ReLU(),
        "fc3": nn.Linear(500, classes),
    }
    return nn.Sequential(OrderedDict(layers))
