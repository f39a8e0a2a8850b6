"""A directory of image files, one folder per class: DIR/train/CLASS/... and DIR/test/CLASS/... or DIR/val/CLASS/...

Options

    size      side, or HEIGHTxWIDTH; default: the size that more than half of up to 256 training files have, or 224
    augment   none, shift (crop_and_mirror) or area (a random part of 8 to 100 % of the area, mirrored with
              probability 1/2: Szegedy et al., Going deeper with convolutions, CVPR 2015); default: area if the
              shorter side is above 64, otherwise shift
    mean_std  the data set whose mean and standard deviation normalise: imagenet (default), cifar10, cifar100 or svhn
    cache     MiB of decoded images to keep in memory (256); sets that need more are decoded again for every batch

Without augmentation by area, an image is cut around its centre to the wanted proportions, and then resized. If the wanted shorter
side is above 64, the sides of the cut are 7/8 of the largest possible sides. Images are converted to RGB (pixels.py). Files are
decoded by two threads of the process that makes the batch.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from psnode.config.names import choose
from psnode.errors import ConfigurationError
from psnode.tasks.data.data_set import STATISTICS, Description, Request
from psnode.tasks.data.image_files import Files, Listing, check_readable, file_size

OPTIONS: tuple[str, ...] = ("size", "augment", "mean_std", "cache")

_ENDINGS = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"))
_MAYBE_DEEP = frozenset((".ppm", ".pgm", ".tif", ".tiff"))
_REMEDY = "--data-dir needs the folders train and test (or val) with one folder of image files per class"
_PARTS = {True: ("train",), False: ("test", "val")}
_LARGE = 64
_HEADS = 20_000  # headers read before training, at 20 to 90 microseconds each if the files are cached


def describe(request: Request) -> Description:
    """Return the size, from the options or the training files, and the number of classes, from the training folders."""
    root = _part(request, "train")
    classes = _classes(request, root)
    height, width = _size_option(request) or _common_size(request, root, classes)
    return Description((3, height, width), len(classes))


def check(request: Request) -> None:
    _part(request, *_PARTS[request.train])


def load(request: Request) -> Files:
    image_shape, _ = describe(request)
    large = min(image_shape[1:]) > _LARGE
    augment = request.options.get("augment", "area" if large else "shift")
    augment = choose("value of data set option augment", augment, ("none", "shift", "area"))
    colours = [name for name, statistics in STATISTICS.items() if len(statistics.mean) == 3]
    statistics = choose("value of data set option mean_std", request.options.get("mean_std", "imagenet"), colours)
    cache = request.options.get("cache", "256")
    if not re.fullmatch(r"\d+", cache):
        raise ConfigurationError(f"data set option cache must be a whole number of MiB, not {cache!r}")
    classes = _classes(request, _part(request, "train"))
    listing = _list(request, _part(request, *_PARTS[request.train]), classes)
    for path in _to_check(listing.paths):
        check_readable(path)
    return Files(
        listing,
        image_shape,
        STATISTICS[statistics],
        augment=augment if request.train else "none",
        keep=0.875 if large else 1.0,
        cache=int(cache) << 20,
    )


def _to_check(paths: Sequence[str]) -> list[str]:
    """Return the files whose headers are read before training.

    These are all files whose suffix allows more than 8 bits per channel, and some of the others. The header determines the
    kind of a file, not the suffix. A bad file that is skipped here is refused when it is decoded.
    """
    deep = {path for path in paths if os.path.splitext(path)[1].lower() in _MAYBE_DEEP}
    return [*sorted(deep), *_spread([path for path in paths if path not in deep], _HEADS)]


def _part(request: Request, *names: str) -> Path:
    """Return the first of the folders `names` that exists. Raises ConfigurationError if all are missing."""
    for name in names:
        if (request.directory() / name).is_dir():
            return request.directory() / name
    raise request.missing(f"no folder {' or '.join(names)} in {request.data_dir}", _REMEDY)


def _classes(request: Request, root: Path) -> tuple[str, ...]:
    classes = tuple(sorted(entry.name for entry in root.iterdir() if entry.is_dir()))
    if not classes:
        raise request.missing(f"no folders in {root}", _REMEDY)
    return classes


def _images(folder: Path) -> list[str]:
    """Return the image files in a folder and its subfolders, sorted."""
    found = (os.path.join(where, name) for where, _, names in os.walk(folder, followlinks=True) for name in names)
    return sorted(path for path in found if os.path.splitext(path)[1].lower() in _ENDINGS)


def _list(request: Request, root: Path, classes: tuple[str, ...]) -> Listing:
    """Return all image files of a part, class by class. `classes`: the classes of the training part."""
    if strange := sorted(set(_classes(request, root)) - set(classes)):
        raise request.missing(f"{root} has a class {strange[0]!r} that train lacks", _REMEDY)
    files = [_images(root / name) for name in classes]
    if request.train and [] in files:
        raise request.missing(f"{root / classes[files.index([])]} holds no image files", _REMEDY)
    paths = tuple(path for folder in files for path in folder)
    if not paths:
        raise request.missing(f"{root} holds no image files", _REMEDY)
    return Listing(paths, np.repeat(np.arange(len(classes)), [len(folder) for folder in files]), classes)


def _size_option(request: Request) -> tuple[int, int] | None:
    text = request.options.get("size")
    if text is None:
        return None
    match = re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)
    if match is None:
        raise ConfigurationError(f"data set option size must be a side such as 224, or HEIGHTxWIDTH, not {text!r}")
    return int(match[1]), int(match[2] or match[1])


def _common_size(request: Request, root: Path, classes: tuple[str, ...]) -> tuple[int, int]:
    """Return the (height, width) that more than half of some sampled files have, or (224, 224) if there is no such size.

    The sample is up to 16 files in each of up to 16 classes.
    """
    chosen = [path for name in _spread(classes) for path in _spread(_images(root / name))]
    if not chosen:
        raise request.missing(f"{root} holds no image files", _REMEDY)
    [(size, count)] = Counter(map(file_size, chosen)).most_common(1)
    return size if 2 * count > len(chosen) else (224, 224)


def _spread(items: Sequence[str], count: int = 16) -> list[str]:
    """Return at most `count` of `items`, evenly spaced."""
    return list(items) if len(items) <= count else [items[i * len(items) // count] for i in range(count)]
