"""Interface of the modules of data sets in this package.

A module `psnode.tasks.data.<module>` has

    OPTIONS                                names of the options that it accepts
    describe(request) -> Description       without reading examples
    check(request) -> None                 ConfigurationError if its files are missing, without reading examples
    load(request) -> ImageData
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from psnode.errors import ConfigurationError
from psnode.task import Data

ImageShape = tuple[int, int, int]


class Description(NamedTuple):
    """Shape (channels, height, width) of every image, and the number of classes."""

    image_shape: ImageShape
    classes: int


class ImageData(Data, Protocol):
    """Labelled images, whose batches are (images float32 (B, *image_shape), labels int64 (B,))."""

    image_shape: ImageShape
    classes: int


@dataclass(frozen=True)
class Request:
    """Request for a part of a data set."""

    name: str
    data_dir: Path | None = None
    train: bool = True
    download: bool = False
    seed: int = 0
    options: Mapping[str, str] = field(default_factory=dict)

    def directory(self) -> Path:
        """Return `data_dir`.

        Raises ConfigurationError if it is not given, or if it does not exist and files may not be downloaded into it.
        """
        if self.data_dir is None:
            raise ConfigurationError(f"data set {self.name} is read from disk: name its directory with --data-dir")
        if not self.data_dir.is_dir() and not self.download:
            raise self.missing(f"{self.data_dir} is not a directory")
        return self.data_dir

    def missing(self, what: str, remedy: str = "") -> ConfigurationError:
        """Return the error for missing or unreadable files. `what` names the files."""
        remedy = remedy or "point --data-dir at its files, or add --download to fetch them"
        return ConfigurationError(f"data set {self.name} cannot be read: {what}; {remedy}")


class Statistics(NamedTuple):
    """Mean and standard deviation per channel of a training set, for pixel values in 0..1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


# Figures in common use. The module of each data set selects its own.
STATISTICS: Mapping[str, Statistics] = {
    "mnist": Statistics((0.1307,), (0.3081,)),
    "cifar10": Statistics((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": Statistics((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": Statistics((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": Statistics((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
