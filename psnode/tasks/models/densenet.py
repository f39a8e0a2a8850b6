"""DenseNet in its forms for small images.

Huang, Liu, van der Maaten, Weinberger: Densely connected convolutional networks, CVPR 2017. The network has three blocks, in
which every layer gets all earlier feature maps of its block as input. Table 2 states 1.0 million parameters for depth L=40
and growth k=12; 0.8 million for the BC form (bottlenecks, transitions that halve the maps) with L=100, k=12; and 25.6
million for BC with L=190, k=40.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from psnode.tasks.models.initialise import he_normal


def densenet(image_shape: tuple[int, int, int], classes: int, depth: int, growth: int, compact: bool) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes); sides must be at least 4.

    `compact`: use the BC form.
    """
    each = (depth - 4) // (6 if compact else 3)
    maps = 2 * growth if compact else 16
    stages: dict[str, nn.Module] = {"stem": nn.Conv2d(image_shape[0], maps, 3, padding=1, bias=False)}
    for block in range(3):
        if block > 0:
            leaving = maps // 2 if compact else maps
            stages[f"transition{block}"] = nn.Sequential(*_preactivated(maps, leaving, 1), nn.AvgPool2d(2))
            maps = leaving
        stages[f"block{block + 1}"] = nn.Sequential(*(Dense(maps + i * growth, growth, compact) for i in range(each)))
        maps += each * growth
    stages["last"] = nn.Sequential(nn.BatchNorm2d(maps), nn.ReLU())
    stages |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(maps, classes)}
    return he_normal(nn.Sequential(OrderedDict(stages)))


class Dense(nn.Module):
    """Layer that appends `growth` new maps, the output of a 3x3 convolution, to its input.

    If compact, a 1x1 convolution to 4 * growth maps comes first.
    """

    def __init__(self, entering: int, growth: int, compact: bool) -> None:
        super().__init__()
        inner = 4 * growth if compact else entering
        bottleneck = _preactivated(entering, inner, 1) if compact else ()
        self.new = nn.Sequential(*bottleneck, *_preactivated(inner, growth, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat((x, self.new(x)), dim=1)


def _preactivated(entering: int, leaving: int, kernel: int) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(entering, leaving, kernel, padding=kernel // 2, bias=False)
    return nn.BatchNorm2d(entering), nn.ReLU(), convolution
