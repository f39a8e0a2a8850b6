"""Images decoded from files on demand."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.errors import ConfigurationError
from psnode.tasks.data.data_set import ImageShape, Statistics
from psnode.tasks.data.images import Normalise, Pixels, crop_and_mirror
from psnode.tasks.data.pixels import require_readable, rgb

if TYPE_CHECKING:
    import torch
    from PIL import Image

_THREADS = 2

# left, upper, right and lower edge, as fractions of the image's width or height
Box = tuple[float, float, float, float]


class Listing(NamedTuple):
    """Image files, the index of the class of each file (int64), and the names of the classes."""

    paths: tuple[str, ...]
    labels: npt.NDArray[np.int64]
    classes: tuple[str, ...]


class Files:
    """The images of a listing, resized to `image_shape`; implements ImageData.

    When an image is cut around its centre, the sides of the cut are `keep` times the largest possible sides. `augment` (none,
    shift, area) applies to batches drawn with an rng. If all images fit in `cache` bytes and are not augmented by area, each
    image is decoded only once.
    """

    def __init__(
        self, listing: Listing, image_shape: ImageShape, statistics: Statistics, *, augment: str, keep: float, cache: int
    ) -> None:
        self.image_shape, self.classes = image_shape, len(listing.classes)
        self._paths, self._labels = listing.paths, listing.labels
        self._normalise = Normalise(statistics)
        self._augment, self._keep = augment, keep
        self._caching = len(listing.paths) * int(np.prod(image_shape)) <= cache

    def __len__(self) -> int:
        return len(self._paths)

    def batch(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images float32 (B, 3, H, W) and labels int64 (B,).

        If a file is not an image, this raises a ConfigurationError that names the file.
        """
        import torch

        if self._augment == "area" and rng is not None:
            pixels = self._decode(indices, rng)
            mirrored = rng.integers(2, size=len(indices)).astype(bool)
            pixels[mirrored] = pixels[mirrored][..., ::-1]
        else:
            pixels = self._decode_once(indices) if self._caching else self._decode(indices)
            if self._augment == "shift" and rng is not None:
                pixels = crop_and_mirror(pixels, rng)
        return self._normalise(pixels), torch.from_numpy(self._labels[indices])

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(_THREADS, thread_name_prefix="decode")

    @cached_property
    def _decoded(self) -> tuple[Pixels, npt.NDArray[np.bool_]]:
        """Return an array with room for all images, and a mask of the images that are already decoded.

        Pages of images that are not yet decoded take no memory.
        """
        return np.empty((len(self), *self.image_shape), np.uint8), np.zeros(len(self), bool)

    def _decode_once(self, indices: npt.NDArray[np.int64]) -> Pixels:
        images, there = self._decoded
        new = np.unique(indices[~there[indices]])
        images[new] = self._decode(new)
        there[new] = True
        return images.take(indices, axis=0)

    def _decode(self, indices: npt.NDArray[np.int64], rng: np.random.Generator | None = None) -> Pixels:
        """Return pixels (B, 3, H, W): the centre of each image or, if `rng` is given, a random part of it.

        The random parts follow from one call, rng.random((B, 4)).
        """
        _, height, width = self.image_shape
        pixels = np.empty((len(indices), height, width, 3), np.uint8)
        draws = None if rng is None else rng.random((len(indices), 4))

        def work(chunk: npt.NDArray[np.int64]) -> None:
            for place in chunk:
                draw = None if draws is None else draws[place]
                pixels[place] = self._read(self._paths[indices[place]], draw)

        list(self._pool.map(work, np.array_split(np.arange(len(indices)), _THREADS)))
        return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2))

    def _read(self, path: str, draw: npt.NDArray[np.float64] | None) -> Pixels:
        from PIL import Image

        _, height, width = self.image_shape
        with open_image(path) as file:
            image = rgb(file, path)
        proportion = width / height * image.height / image.width
        box = central_box(proportion, self._keep) if draw is None else random_box(proportion, draw)
        edges = (box[0] * image.width, box[1] * image.height, box[2] * image.width, box[3] * image.height)
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR, box=edges))


def file_size(path: str) -> tuple[int, int]:
    """Return (height, width) of an image file, from its header."""
    with open_image(path) as file:
        return file.height, file.width


def check_readable(path: str) -> None:
    """Raise ConfigurationError if a file's header is not that of an image, or if the image's pixels have no definite colour."""
    with open_image(path) as file:
        require_readable(file, path)


@contextmanager
def open_image(path: str) -> Iterator[Image.Image]:
    """Open an image file with PIL without decoding it. Errors of the file become a ConfigurationError."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            yield file
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:  # PIL's errors for damaged files
        raise ConfigurationError(f"{path} cannot be decoded ({error}): replace or remove it") from error


def central_box(proportion: float, keep: float) -> Box:
    """Return the largest box of the wanted proportions around the centre of an image, with its sides multiplied by `keep`.

    `proportion`: the wanted ratio of width to height, divided by the image's ratio.
    """
    width, height = keep * min(1.0, proportion), keep * min(1.0, 1 / proportion)
    return (1 - width) / 2, (1 - height) / 2, (1 + width) / 2, (1 + height) / 2


def random_box(proportion: float, draw: npt.NDArray[np.float64]) -> Box:
    """Return a random box from four numbers in [0, 1).

    The numbers determine the area (8 to 100 %), the distortion of the proportions (3/4 to 4/3), the left edge and the upper edge.
    A side that would exceed the image is cut to fit.
    """
    area, stretch = 0.08 + 0.92 * draw[0], (3 / 4) ** (1 - 2 * draw[1])
    width = min(1.0, float(np.sqrt(area * proportion * stretch)))
    height = min(1.0, float(np.sqrt(area / (proportion * stretch))))
    left, upper = float(draw[2]) * (1 - width), float(draw[3]) * (1 - height)
    return left, upper, left + width, upper + height
