"""The embedded data set: 1797 handwritten 8x8 digits in optical_digits.npz, under the license in optical_digits.md.

Alpaydin, Kaynak: Optical recognition of handwritten digits, UCI repository, 1998. The images are resized to 28x28 by linear
interpolation, to fit models made for MNIST. There are 1437 training and 360 test examples; the split does not depend on the
seed, and both parts have nearly the same proportions of digits.
"""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from psnode.tasks.data.data_set import Description, Request, Statistics
from psnode.tasks.data.images import Images, Pixels

OPTIONS: tuple[str, ...] = ()
TEST_SIZE = 360
# Mean and standard deviation of the 1437 resized training images.
STATISTICS = Statistics((0.3048,), (0.3244,))

_FILE = Path(__file__).with_name("optical_digits.npz")
_SIDE = 28
_SPLIT_SEED = 1797
_AT_ONCE = 32  # images resized at a time, few enough to fit into a core's cache


def describe(request: Request) -> Description:
    return Description((1, _SIDE, _SIDE), 10)


def check(request: Request) -> None:
    """Do nothing: the digits are part of the package."""


def load(request: Request) -> Images:
    return Images(*_part(request.train), 10, STATISTICS)


@functools.cache
def _part(train: bool) -> tuple[Pixels, npt.NDArray[np.int64]]:
    """Return pixels and labels of the training or test part. All workers of a process share these arrays, which are read-only."""
    images, labels = originals()
    chosen = stratified_split(labels, TEST_SIZE, _SPLIT_SEED)[0 if train else 1]
    pixels, own = resize(images[chosen]), labels[chosen]
    for array in (pixels, own):
        array.setflags(write=False)
    return pixels, own


def originals() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """Return the images as published, (1797, 8, 8) with values 0..16, and the labels, (1797,)."""
    with np.load(_FILE) as arrays:
        return arrays["images"].astype(np.float64), arrays["labels"].astype(np.int64)


def resize(images: npt.NDArray[np.float64]) -> Pixels:
    """Resize images (N, 8, 8) with values 0..16 to (N, 1, 28, 28) with values 0..255. The outer edges of the images are aligned.

    A pixel of the result is the weighted sum of four pixels of the image. They are added row by row, and each is multiplied
    first by the weight of its row and then by the weight of its column. Some sums lie halfway between two integers, and the
    order of the operations determines how they are rounded.
    """
    side = images.shape[1]
    centres = np.clip((np.arange(_SIDE) + 0.5) * side / _SIDE - 0.5, 0, side - 1)
    first = np.minimum(centres.astype(np.int64), side - 2)
    neighbours = [(index, np.maximum(0, 1 - np.abs(centres - index))) for index in (first, first + 1)]
    pixels = np.empty((len(images), 1, _SIDE, _SIDE), np.uint8)
    for start in range(0, len(images), _AT_ONCE):
        part, enlarged = images[start : start + _AT_ONCE], np.zeros(())
        for row, weight in neighbours:
            rows = part[:, row] * weight[:, None]
            for column, factor in neighbours:
                enlarged = enlarged + rows[:, :, column] * factor
        pixels[start : start + _AT_ONCE, 0] = np.rint(enlarged * (255 / 16))
    return pixels


def stratified_split(
    labels: npt.NDArray[np.int64], test_size: int, seed: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the indices of the training part and of the test part, each sorted.

    The test part gets from every class its share of `test_size`, rounded down. The classes with the largest remainders give one
    more example each, until the test part has `test_size` examples.
    """
    rng = np.random.default_rng(seed)
    counts = np.bincount(labels)
    shares = counts * test_size / len(labels)
    takes = np.floor(shares).astype(np.int64)
    takes[np.argsort(takes - shares, kind="stable")[: test_size - takes.sum()]] += 1
    test = np.concatenate([rng.permutation(np.flatnonzero(labels == c))[:take] for c, take in enumerate(takes)])
    return np.setdiff1d(np.arange(len(labels)), test), np.sort(test)
