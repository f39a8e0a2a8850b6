"""VGG-11, -13, -16 and -19 with batch norm and a single linear layer, of 512 inputs, at the end.

Simonyan, Zisserman: Very deep convolutional networks for large-scale image recognition, ICLR 2015, table 1 (configurations A, B,
D, E). Five poolings reduce a 32x32 image to a single point, so the head is 512 -> classes.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from psnode.tasks.models.initialise import he_normal

_WIDTHS = (64, 128, 256, 512, 512)
_CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}


def vgg(image_shape: tuple[int, int, int], classes: int, depth: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes).

    The sides of an image must be at least 32. The feature maps of larger images are averaged.
    """
    stages: dict[str, nn.Module] = {}
    entering = image_shape[0]
    for stage, (width, convolutions) in enumerate(zip(_WIDTHS, _CONVOLUTIONS[depth], strict=True)):
        stack = nn.Sequential()
        for _ in range(convolutions):
            stack.extend((nn.Conv2d(entering, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()))
            entering = width
        stages[f"stage{stage + 1}"] = stack.append(nn.MaxPool2d(2))
    stages |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(512, classes)}
    return he_normal(nn.Sequential(OrderedDict(stages)))
