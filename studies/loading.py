"""`python -m studies.loading`: images per second of a worker's data loading, and of torch's DataLoader on the same files.

Both programs decode JPEG files, crop a random part of the area, mirror it with probability 1/2, and normalise to float32.
psnode uses the data set imagefolder. torch uses torchvision's ImageFolder with RandomResizedCrop and RandomHorizontalFlip. The
two programs take turns in one run. The timing begins after the first batch, so it does not include the start of processes.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from psnode.config import Config
from psnode.config.declaration import option
from studies.harness import Column, Found, Study, main

_QUALITY = 85


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.loading`."""

    data_dir: Path | None = option(None, "Same as for imagefolder; default: JPEGs made on the spot.", metavar="DIR")
    size: int = option(224, "Side of the images that come out.", minimum=1)
    batch_size: int = option(32, "Images of a batch.", minimum=1)
    data_workers: tuple[int, ...] = option((0, 1, 2), "Processes; repeat.", minimum=0, repeated=True, metavar="N")
    batches: int = option(24, "Batches that are timed.", minimum=1)
    rounds: int = option(3, "The median of this many, in turn.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row per number of processes, with the images per second of psnode and of torch: median, minimum and maximum."""
    with tempfile.TemporaryDirectory() as folder:
        root = options.data_dir or _made(Path(folder), max(256, 2 * options.batch_size))
        found: dict[tuple[int, str], list[float]] = {}
        for _ in range(options.rounds):
            for count in options.data_workers:
                for name, begin in (("psnode", _ours), ("torch", _theirs)):
                    made = begin(root, options.size, options.batch_size, count)
                    found.setdefault((count, name), []).append(_rate(made, options.batch_size, options.batches))
    sides = ("psnode", "torch")
    return Found([{"processes": each, **{name: _spread(found[each, name]) for name in sides}} for each in options.data_workers])


def _spread(rates: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}


def _rate(made: Iterator[Any], batch_size: int, batches: int) -> float:
    next(made)
    begun = time.perf_counter()
    for _ in range(batches):
        next(made)
    return batches * batch_size / (time.perf_counter() - begun)


def _ours(root: Path, size: int, batch_size: int, processes: int) -> Iterator[Any]:
    """Yield batches of psnode's data loading, as a worker gets them."""
    from psnode.tasks import data
    from psnode.tasks.data.given import data_of
    from psnode.tasks.data.sampler import Sampler
    from psnode.worker.data_share import DataShare

    options = {"size": str(size), "augment": "area", "cache": "0"}
    given = data_of(data.load("imagefolder", root, options=options), Config(batch_size=batch_size, data_workers=processes))
    share = DataShare.after(given, Sampler(len(given), 0, 1, batch_size), 0, 1 << 30)
    try:
        while True:
            yield next(share.batches)
    finally:
        share.batches.close()


def _theirs(root: Path, size: int, batch_size: int, processes: int) -> Iterator[Any]:
    """Return an iterator over batches of torch's DataLoader. It never ends: one epoch follows another."""
    from torch.utils.data import DataLoader

    from psnode.tasks.data.processes import context

    files: Any = _Files(root, size)
    loader: DataLoader[Any] = DataLoader(
        files, batch_size, shuffle=True, drop_last=True, num_workers=processes, persistent_workers=processes > 0,
        multiprocessing_context=context() if processes else None,
    )  # fmt: skip
    return chain.from_iterable(repeat(loader))


class _Files:
    """torchvision's ImageFolder, which every process constructs for itself instead of unpickling it.

    Before torchvision is imported, operators may have to be declared; the constructor does this.
    """

    def __init__(self, root: Path, size: int) -> None:
        from psnode.tasks.data.data_set import STATISTICS
        from psnode.tasks.torchvision_ops import import_torchvision

        self._made_of = root, size
        datasets, transforms = import_torchvision("datasets"), import_torchvision("transforms")
        steps = [
            transforms.RandomResizedCrop(size), transforms.RandomHorizontalFlip(), transforms.ToTensor(),
            transforms.Normalize(*STATISTICS["imagenet"]),
        ]  # fmt: skip
        self._files = datasets.ImageFolder(str(root / "train"), transforms.Compose(steps))

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Any:
        return self._files[index]

    def __reduce__(self) -> tuple[type[_Files], tuple[Path, int]]:
        return _Files, self._made_of


def _made(folder: Path, count: int) -> Path:
    """Make a data set in `folder`: `count` training JPEG files of 256 x 256, smooth like photographs, in two classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, number in (("train", count), ("test", 2)):
        for index in range(number):
            path = folder / part / f"class-{index % 2}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=_QUALITY)
    return folder


COLUMNS = (
    Column("processes", "{processes}"),
    Column("psnode, images/s", "{psnode[median]:.0f}"),
    Column("torch's DataLoader, images/s", "{torch[median]:.0f}"),
    Column("ratio", lambda row: f"{row['psnode']['median'] / row['torch']['median']:.2f}"),
)
STUDY = Study(Options, measure, COLUMNS)


if __name__ == "__main__":
    sys.exit(main(STUDY))
