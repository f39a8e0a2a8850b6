"""The data sets that come with psnode, by name.

    load("digits", train=True)
    load("cifar10", "/data", train=True, download=True)
    load("synthetic", train=True, seed=3, options={"shape": "3x224x224", "classes": "1000"})

Case, hyphens and underscores in names do not matter. Data sets in memory, except synthetic, hold bytes, which become float32
when a batch is made. Training and evaluation data are normalised in the same way. The module of a data set is imported when it
is used.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psnode.config.names import choose, settle
from psnode.tasks.data.data_set import Description, ImageData, Request

__all__ = ["Description", "ImageData", "check", "datasets", "describe", "load", "resolve"]

_MODULES: Mapping[str, str] = {
    "digits": "digits",
    "mnist": "mnist",
    "cifar10": "torchvision_data",
    "cifar100": "torchvision_data",
    "svhn": "torchvision_data",
    "imagefolder": "imagefolder",
    "synthetic": "synthetic",
}


def datasets() -> tuple[str, ...]:
    """Return the names of the data sets, sorted."""
    return tuple(sorted(_MODULES))


def resolve(name: str) -> str:
    """Return the canonical name of a data set, such as "cifar10" for "CIFAR-10". Raises ConfigurationError for an unknown
    name."""
    return choose("data set", name, _MODULES)


def describe(name: str, data_dir: str | Path | None = None, options: Mapping[str, str] | None = None) -> Description:
    """Return the image shape and the number of classes without reading examples. Only imagefolder reads from the disk."""
    module, request = _ask(name, data_dir, options)
    description: Description = module.describe(request)
    return description


def check(
    name: str,
    data_dir: str | Path | None = None,
    train: bool = True,
    download: bool = False,
    options: Mapping[str, str] | None = None,
) -> Description:
    """Check options and files, and return the result of `describe`.

    Raises ConfigurationError, with the remedy, if an option or a file is missing or wrong.
    """
    module, request = _ask(name, data_dir, options, train=train, download=download)
    module.check(request)
    description: Description = module.describe(request)
    return description


def load(
    name: str,
    data_dir: str | Path | None = None,
    train: bool = True,
    download: bool = False,
    seed: int = 0,
    options: Mapping[str, str] | None = None,
) -> ImageData:
    """Return the training part of a data set if `train` is True, otherwise its test part.

    `data_dir` holds the files of the data set; missing files are downloaded only if `download` is True. `seed` matters only
    for synthetic. `options` are the options of the data set. Raises ConfigurationError, with the remedy, if the data cannot
    be read.
    """
    module, request = _ask(name, data_dir, options, train=train, download=download, seed=seed)
    data: ImageData = module.load(request)
    return data


def _ask(name: str, data_dir: str | Path | None, options: Mapping[str, str] | None, **more: Any) -> tuple[Any, Request]:
    name = resolve(name)
    module = importlib.import_module(f"psnode.tasks.data.{_MODULES[name]}")
    settled = settle(f"option of data set {name}", options or {}, module.OPTIONS)
    return module, Request(name, None if data_dir is None else Path(data_dir), options=settled, **more)
