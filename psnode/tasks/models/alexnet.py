"""AlexNet, reduced for small images: 2.47 million parameters at 3x32x32 and 10 classes.

Krizhevsky, Sutskever, Hinton: ImageNet classification with deep convolutional neural networks, NIPS 2012. This form has the five
convolutions in the widths of the one-tower variant (64, 192, 384, 256, 256) and a single linear layer.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def alexnet(image_shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes).

    The sides of an image must be at least 29. The feature maps of larger images are averaged.
    """
    features = nn.Sequential(
        nn.Conv2d(image_shape[0], 64, 11, stride=4, padding=5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 192, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(192, 384, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(384, 256, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(256, 256, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )
    layers: dict[str, nn.Module] = {"features": features, "pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(layers | {"head": nn.Linear(256, classes)}))
