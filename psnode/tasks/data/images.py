"""Labelled images that are held in memory as bytes and normalised one batch at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from psnode.tasks.data.data_set import ImageShape, Statistics

if TYPE_CHECKING:
    import torch

Pixels = npt.NDArray[np.uint8]


class Images:
    """All examples as one uint8 array (N, C, H, W) with labels (N,); implements ImageData.

    Training and evaluation images are normalised in the same way: (pixel / 255 - mean) / std. With `augment`, batches drawn with
    an rng are cropped and mirrored by `crop_and_mirror`.
    """

    def __init__(
        self, pixels: Pixels, labels: npt.NDArray[np.int64], classes: int, statistics: Statistics, augment: bool = False
    ) -> None:
        self.pixels = np.ascontiguousarray(pixels)
        self.labels = np.ascontiguousarray(labels, dtype=np.int64)
        self.classes = classes
        self.image_shape: ImageShape = (pixels.shape[1], pixels.shape[2], pixels.shape[3])
        self.normalise = Normalise(statistics)
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 (B, C, H, W) and labels int64 (B,)."""
        import torch

        pixels = self.pixels.take(indices, axis=0)
        if self.augment and rng is not None:
            pixels = crop_and_mirror(pixels, rng)
        return self.normalise(pixels), torch.from_numpy(self.labels[indices])


class Normalise:
    """Function from pixels, uint8 (B, C, H, W), to float32 (pixel / 255 - mean) / std, per channel."""

    def __init__(self, statistics: Statistics) -> None:
        import torch

        mean, std = (np.array(values)[:, None, None] for values in statistics)
        self._scale = torch.from_numpy((1 / (255 * std)).astype(np.float32))
        self._shift = torch.from_numpy((-mean / std).astype(np.float32))

    def __call__(self, pixels: Pixels) -> torch.Tensor:
        import torch

        return torch.from_numpy(pixels).to(torch.float32).mul_(self._scale).add_(self._shift)


def crop_and_mirror(pixels: Pixels, rng: np.random.Generator, margin: int = 4) -> Pixels:
    """Shift every image by up to `margin` pixels in each direction, filling with black, and mirror it with probability 1/2.

    Lee et al.: Deeply-supervised nets, AISTATS 2015; He et al. 2016 use this on CIFAR. Rows and columns are drawn by
    rng.integers(2 * margin + 1, size=(2, B)), then the mirroring by rng.integers(2, size=B).
    """
    count, channels, height, width = pixels.shape
    padded = np.zeros((count, channels, height + 2 * margin, width + 2 * margin), np.uint8)
    padded[:, :, margin : margin + height, margin : margin + width] = pixels
    rows, columns = rng.integers(2 * margin + 1, size=(2, count))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (height, width), axis=(2, 3))
    cropped: Pixels = windows[np.arange(count), :, rows, columns]
    mirrored = rng.integers(2, size=count).astype(bool)
    cropped[mirrored] = cropped[mirrored][..., ::-1]
    return cropped
