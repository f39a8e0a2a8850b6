"""MNIST, read from its four IDX files, compressed or not, in DIR/MNIST/raw, DIR/raw or DIR.

LeCun, Bottou, Bengio, Haffner 1998. An IDX file is big-endian: two zero bytes, a type byte (8: unsigned bytes), the number of
dimensions, each dimension as 32 bits, then the values in C order.
"""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from psnode.errors import ConfigurationError
from psnode.tasks.data.data_set import STATISTICS, Description, Request
from psnode.tasks.data.download import one_at_a_time
from psnode.tasks.data.images import Images, Pixels

OPTIONS: tuple[str, ...] = ()


def describe(request: Request) -> Description:
    return Description((1, 28, 28), 10)


def check(request: Request) -> None:
    request.directory()
    if not request.download:
        _find(request)


def load(request: Request) -> Images:
    try:
        paths = _find(request)
    except ConfigurationError:
        if not request.download:
            raise
        _download(request.directory())
        paths = _find(request)
    images, labels = (_read(path, request) for path in paths)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise request.missing(f"its files hold images of shape {images.shape} and labels of shape {labels.shape}")
    return Images(images[:, None], labels.astype(np.int64), 10, STATISTICS["mnist"])


def _find(request: Request) -> tuple[Path, Path]:
    """Return the paths of the file of images and the file of labels."""
    directory = request.directory()
    part = "train" if request.train else "t10k"
    names = (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte")
    for folder in (directory / "MNIST" / "raw", directory / "raw", directory):
        candidates = ([folder / name, folder / f"{name}.gz"] for name in names)
        images, labels = (next(filter(Path.is_file, paths), None) for paths in candidates)
        if images and labels:
            return images, labels
    raise request.missing(f"no {names[0]} and {names[1]}, with or without .gz, in {directory}, its raw or its MNIST/raw")


def _read(path: Path, request: Request) -> Pixels:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise request.missing(f"{path} is damaged ({error})") from error
    start = 4 + 4 * data[3] if len(data) >= 4 else 0
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    if data[:3] != b"\0\0\x08" or len(data) != start + math.prod(shape):
        raise request.missing(f"{path} is not a complete IDX file of unsigned bytes")
    return np.frombuffer(data, np.uint8, offset=start).reshape(shape)


def _download(directory: Path) -> None:
    from psnode.tasks.torchvision_ops import import_torchvision

    with one_at_a_time(directory, "mnist"):
        import_torchvision("datasets").MNIST(str(directory), download=True)
