"""ResNet-18 to ResNet-152 with a stem for small images: one 3x3 convolution of stride 1, without pooling.

He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016, table 1 and figure 5. The stem is the usual one for
CIFAR. The stride of a bottleneck is in its 3x3 convolution.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn

from psnode.tasks.models.initialise import he_normal

_STAGES = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}


def resnet(image_shape: tuple[int, int, int], classes: int, depth: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes); sides must be at least 8."""
    bottleneck = depth >= 50
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(*_unit(image_shape[0], 64, 3), nn.ReLU())}
    entering = 64
    for stage, blocks in enumerate(_STAGES[depth]):
        width, stack = 64 << stage, nn.Sequential()
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            stack.append(Residual(entering, width, stride, bottleneck))
            entering = 4 * width if bottleneck else width
        stages[f"stage{stage + 1}"] = stack
    stages |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(entering, classes)}
    return he_normal(nn.Sequential(OrderedDict(stages)))


class Residual(nn.Module):
    """Residual block relu(x + F(x)).

    F is two 3x3 convolutions to `width` maps or, as a bottleneck, 1x1, 3x3 and 1x1 convolutions with 4 * `width` maps at the end.
    The shortcut is the identity, or a 1x1 projection where the shape changes (option B).
    """

    def __init__(self, entering: int, width: int, stride: int, bottleneck: bool) -> None:
        super().__init__()
        leaving = width * (4 if bottleneck else 1)
        if bottleneck:
            units: tuple[nn.Module, ...] = (
                *_unit(entering, width, 1),
                nn.ReLU(),
                *_unit(width, width, 3, stride),
                nn.ReLU(),
                *_unit(width, leaving, 1),
            )
        else:
            units = (*_unit(entering, width, 3, stride), nn.ReLU(), *_unit(width, leaving, 3))
        self.residual = nn.Sequential(*units)
        same = stride == 1 and entering == leaving
        self.shortcut = nn.Identity() if same else nn.Sequential(*_unit(entering, leaving, 1, stride))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.residual(x) + self.shortcut(x))


def _unit(entering: int, leaving: int, kernel: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(entering, leaving, kernel, stride, padding=kernel // 2, bias=False)
    return convolution, nn.BatchNorm2d(leaving)
