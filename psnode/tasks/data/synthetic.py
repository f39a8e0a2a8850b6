"""Synthetic images of any shape, for benchmarks and for tests of a network without data.

Example i is the coarse pattern of its class plus one of 64 noise images, all drawn from the seed. Memory for the images therefore
does not grow with the number of examples, and a network can learn to distinguish the classes. The training and test parts have
the same patterns, but different labels and noise.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from psnode.config.names import positive
from psnode.errors import ConfigurationError
from psnode.tasks.data.data_set import Description, ImageShape, Request

if TYPE_CHECKING:
    import torch

OPTIONS: tuple[str, ...] = ("shape", "classes", "examples")

_NOISES = 64
_COARSE = 8
_MOST_VALUES = 2**22  # maximum number of values for which the patterns are kept in full size


def describe(request: Request) -> Description:
    """Return the image shape and the number of classes, from the options.

    The option shape=C,H,W is 3,32,32 by default; x may also separate its numbers. The option classes is 10 by default.
    """
    text = request.options.get("shape", "3,32,32")
    if not re.fullmatch(r"[1-9]\d*([x,][1-9]\d*){2}", text):
        raise ConfigurationError(f"data set option shape must be CHANNELS,HEIGHT,WIDTH, such as 3,32,32, not {text!r}")
    channels, height, width = map(int, re.split("[x,]", text))
    return Description((channels, height, width), positive("data set option classes", request.options.get("classes", "10")))


def check(request: Request) -> None:
    _examples(request)


def load(request: Request) -> Synthetic:
    return Synthetic(*describe(request), _examples(request), request.seed, request.train)


def _examples(request: Request) -> int:
    default = "50000" if request.train else "10000"
    return positive("data set option examples", request.options.get("examples", default))


class Synthetic:
    """Synthetic images: `length` examples of about unit variance; implements ImageData."""

    def __init__(self, image_shape: ImageShape, classes: int, length: int, seed: int, train: bool) -> None:
        import torch

        channels, height, width = image_shape
        self.image_shape, self.classes = image_shape, classes
        common = np.random.default_rng(seed)
        part = np.random.default_rng((seed, int(train)))
        coarse = common.standard_normal((classes, channels, min(_COARSE, height), min(_COARSE, width)), np.float32)
        self._patterns = torch.from_numpy(coarse)
        if classes * channels * height * width <= _MOST_VALUES:
            self._patterns = self._enlarge(self._patterns)
        self._noises = torch.from_numpy(part.standard_normal((_NOISES, *image_shape), np.float32))
        self._labels = part.integers(classes, size=length)

    def __len__(self) -> int:
        return len(self._labels)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 (B, C, H, W) and labels int64 (B,). `rng` is not used."""
        import torch

        labels = torch.from_numpy(self._labels[indices])
        images = self._patterns.index_select(0, labels)
        if images.shape[1:] != self.image_shape:
            images = self._enlarge(images)
        return images.add_(self._noises.index_select(0, torch.from_numpy(indices % _NOISES))), labels

    def _enlarge(self, patterns: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.interpolate(patterns, size=self.image_shape[1:])
