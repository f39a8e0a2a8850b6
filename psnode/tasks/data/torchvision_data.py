"""CIFAR-10, CIFAR-100 and SVHN in their original files, read by torchvision.

Krizhevsky: Learning multiple layers of features from tiny images, 2009. Netzer et al.: Reading digits in natural images with
unsupervised feature learning, 2011 (the training part without the `extra` images). By default, training batches of CIFAR are
cropped and mirrored (option augment). Batches of SVHN are not, since mirrored digits are not digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from psnode.config.names import boolean
from psnode.tasks.data.data_set import STATISTICS, Description, Request
from psnode.tasks.data.download import one_at_a_time
from psnode.tasks.data.images import Images

OPTIONS: tuple[str, ...] = ("augment",)

# name -> (class in torchvision.datasets, number of classes, files that the directory must hold)
_SETS = {
    "cifar10": ("CIFAR10", 10, "cifar-10-batches-py"),
    "cifar100": ("CIFAR100", 100, "cifar-100-python"),
    "svhn": ("SVHN", 10, "{part}_32x32.mat"),
}


def describe(request: Request) -> Description:
    return Description((3, 32, 32), _SETS[request.name][1])


def check(request: Request) -> None:
    request.directory()
    if not request.download:
        _root(request)


def load(request: Request) -> Images:
    from psnode.tasks.torchvision_ops import import_torchvision

    kind = getattr(import_torchvision("datasets"), _SETS[request.name][0])
    part: dict[str, Any] = {"train": request.train}
    if request.name == "svhn":
        part = {"split": "train" if request.train else "test"}
    if request.download:
        with one_at_a_time(request.directory(), request.name):
            kind(str(request.directory()), download=True, **part)
    try:
        source = kind(str(_root(request)), download=False, **part)
    except (RuntimeError, OSError) as error:
        raise request.missing(f"its files are not complete ({' '.join(str(error).split())})") from error
    return _images(request, source)


def _images(request: Request, source: Any) -> Images:
    """Return torchvision's data set `source` as Images. `source.data` is (N, H, W, C) for CIFAR and (N, C, H, W) for SVHN."""
    street = request.name == "svhn"
    pixels = np.asarray(source.data) if street else np.asarray(source.data).transpose(0, 3, 1, 2)
    labels = np.asarray(source.labels if street else source.targets, dtype=np.int64)
    augment = boolean("data set option augment", request.options.get("augment", "false" if street else "true"))
    return Images(pixels, labels, _SETS[request.name][1], STATISTICS[request.name], augment)


def _root(request: Request) -> Path:
    """Return the directory that holds the data set's folder, as torchvision expects it.

    --data-dir may name this directory, or the data set's folder itself.
    """
    directory = request.directory()
    wanted = _SETS[request.name][2].format(part="train" if request.train else "test")
    if (directory / wanted).exists():
        return directory
    if directory.name == wanted:
        return directory.parent
    raise request.missing(f"no {wanted} in {directory}")
