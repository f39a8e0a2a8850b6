"""A small vision transformer on MNIST or another built-in data set.

psnode train --local 2 --task examples/vit.py --task-option data=data/mnist --optimizer adamw --lr 0.001 --max-steps 700

Dosovitskiy et al.: An image is worth 16x16 words, ICLR 2021: patches, a class token, learned positions, pre-norm blocks.

Options, as --task-option KEY=VALUE
    dataset  a built-in data set (mnist; digits needs no files)
    data     the folder with the files of the data set
    patch    side of a patch in pixels, a divisor of the image's side (7)
    width    features of a patch, a multiple of 4 (64)
    layers   blocks (4)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from psnode.errors import ConfigurationError
from psnode.tasks.classification import Classification

_HEADS = 4


class VisionTransformer(nn.Module):
    """A vision transformer from float32 images (B, channels, side, side) to logits (B, classes)."""

    def __init__(self, image: tuple[int, int, int], patch: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        channels, height, across = image
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, 1 + (height // patch) * (across // patch), width))
        block = nn.TransformerEncoderLayer(width, _HEADS, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(patches), -1, -1), patches], dim=1) + self.position
        logits: torch.Tensor = self.head(self.norm(self.blocks(x)[:, 0]))
        return logits


class SmallVision(Classification):
    """A task that trains `VisionTransformer`, with psnode's own image data and losses."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        settings = {"dataset": "mnist", "data": "", "patch": "7", "width": "64", "layers": "4"}
        given = dict(options or {})
        if unknown := sorted(set(given) - set(settings)):
            raise ConfigurationError(f"unknown task option {unknown[0]!r}: the choices are {', '.join(settings)}")
        settings |= given
        super().__init__("LeNet", settings["dataset"], settings["data"] or None)
        self.options = given
        for name in ("patch", "width", "layers"):
            if not settings[name].isdecimal() or int(settings[name]) < 1:
                raise ConfigurationError(f"task option {name} must be a whole number of at least 1, not {settings[name]!r}")
        self.patch, self.width, self.layers = (int(settings[name]) for name in ("patch", "width", "layers"))
        if any(side % self.patch for side in self.image_shape[1:]):
            raise ConfigurationError(f"task option patch must divide the image's sides {self.image_shape[1:]}, not {self.patch}")
        if self.width % _HEADS:
            raise ConfigurationError(f"task option width must be a multiple of {_HEADS}, not {self.width}")

    def model(self) -> nn.Module:
        return VisionTransformer(self.image_shape, self.patch, self.width, self.layers, self.classes)
