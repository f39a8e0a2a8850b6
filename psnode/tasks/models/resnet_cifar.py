"""ResNet-20, -32, -56 and -110: the narrow family that He et al. made for CIFAR-10.

He, Zhang, Ren, Sun: Deep residual learning for image recognition, CVPR 2016, section 4.2: 6n + 2 layers of 16, 32 and 64 maps.
Every shortcut is an identity, subsampled and padded with zero maps where the shape changes (option A), and so has no parameters.
Table 6 states 0.27, 0.46, 0.85 and 1.7 million parameters.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
from torch import nn
from torch.nn import functional

from psnode.tasks.models.initialise import he_normal


def resnet_cifar(image_shape: tuple[int, int, int], classes: int, depth: int) -> nn.Module:
    """Return a network from images (batch, *image_shape) float32 to logits (batch, classes); sides must be at least 4."""
    stem = (nn.Conv2d(image_shape[0], 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    stages: dict[str, nn.Module] = {"stem": nn.Sequential(*stem)}
    entering = 16
    for stage, width in enumerate((16, 32, 64)):
        stack = nn.Sequential()
        for _ in range((depth - 2) // 6):
            stack.append(ThinResidual(entering, width))
            entering = width
        stages[f"stage{stage + 1}"] = stack
    stages |= {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "head": nn.Linear(64, classes)}
    return he_normal(nn.Sequential(OrderedDict(stages)))


class ThinResidual(nn.Module):
    """Residual block relu(x + F(x)), where F is two 3x3 convolutions.

    A block that increases the number of maps halves the sides of the image.
    """

    def __init__(self, entering: int, width: int) -> None:
        super().__init__()
        self.stride = 1 if entering == width else 2
        self.grown = width - entering
        self.residual = nn.Sequential(
            nn.Conv2d(entering, width, 3, self.stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x
        if self.grown:
            half = self.grown // 2
            shortcut = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, half, self.grown - half))
        return torch.relu(self.residual(x) + shortcut)
