"""`psnode bench loading`: images a second that a worker's data give, beside torch's DataLoader on the same files in the same run.

Both decode JPEG files, cut out a random part of the area, mirror it with probability 1/2, and normalise to float32: psnode by
the data set imagefolder, torch by torchvision's ImageFolder with RandomResizedCrop and RandomHorizontalFlip. They take
turns. What is measured begins when a first batch is there, so that the start of processes is left out.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench.hardware import hardware
from psnode.bench.saving import save
from psnode.config import Config

_QUALITY = 85


def main(
    data_dir: Path | None, size: int, batch_size: int, processes: Sequence[int], batches: int, rounds: int, json_file: Path | None
) -> int:
    """Measure, print a table, write it as JSON; the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        root = data_dir if data_dir is not None else _made(Path(folder), max(256, 2 * batch_size))
        rows = measure(root, size, batch_size, processes or (0, 1, 2), batches, rounds)
    print("| processes | psnode, images/s | torch's DataLoader, images/s | ratio |\n|---:|---:|---:|---:|")
    for row in rows:
        ours, theirs = row["psnode"]["median"], row["torch"]["median"]
        print(f"| {row['processes']} | {ours:.0f} | {theirs:.0f} | {ours / theirs:.2f} |")
    save({**hardware(), "size": size, "batch_size": batch_size, "batches": batches, "rounds": rounds, "rows": rows}, json_file)
    return 0


def measure(root: Path, size: int, batch_size: int, processes: Sequence[int], batches: int, rounds: int) -> list[dict[str, Any]]:
    """A row a number of processes: median, least and most images a second of each of the two."""
    found: dict[tuple[int, str], list[float]] = {}
    for _ in range(rounds):
        for count in processes:
            for name, begin in (("psnode", _ours), ("torch", _theirs)):
                found.setdefault((count, name), []).append(_rate(begin(root, size, batch_size, count), batch_size, batches))
    return [{"processes": count, **{name: _spread(found[count, name]) for name in ("psnode", "torch")}} for count in processes]


def _spread(rates: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(rates), "low": min(rates), "high": max(rates)}


def _rate(made: Iterator[Any], batch_size: int, batches: int) -> float:
    next(made)
    begun = time.perf_counter()
    for _ in range(batches):
        next(made)
    return batches * batch_size / (time.perf_counter() - begun)


def _ours(root: Path, size: int, batch_size: int, processes: int) -> Iterator[Any]:
    """Batches as a worker gets them."""
    from psnode.tasks import data
    from psnode.tasks.data.given import data_of
    from psnode.tasks.data.sampler import Sampler
    from psnode.worker.share import Share

    options = {"size": str(size), "augment": "area", "cache": "0"}
    given = data_of(data.load("imagefolder", root, options=options), Config(batch_size=batch_size, data_workers=processes))
    share = Share.behind(given, Sampler(len(given), 0, 1, batch_size), 0, 1 << 30)
    try:
        while True:
            yield next(share.batches)
    finally:
        share.batches.close()


def _theirs(root: Path, size: int, batch_size: int, processes: int) -> Iterator[Any]:
    """Batches of torch's DataLoader, epoch after epoch."""
    from torch.utils.data import DataLoader

    from psnode.tasks.data.processes import context

    files: Any = _Files(root, size)
    loader: DataLoader[Any] = DataLoader(
        files, batch_size, shuffle=True, drop_last=True, num_workers=processes, persistent_workers=processes > 0,
        multiprocessing_context=context() if processes else None,
    )  # fmt: skip
    return chain.from_iterable(repeat(loader))


class _Files:
    """torchvision's ImageFolder, made anew in another process: torchvision may want operators declared before its import."""

    def __init__(self, root: Path, size: int) -> None:
        from psnode.tasks.data.base import STATISTICS
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
    """A data set of `count` JPEG files of 256 x 256, smooth as photographs are, in two classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for part, number in (("train", count), ("test", 2)):
        for index in range(number):
            path = folder / part / f"class-{index % 2}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            coarse = rng.integers(256, size=(16, 16, 3), dtype=np.uint8)
            Image.fromarray(coarse).resize((256, 256), Image.Resampling.BICUBIC).save(path, quality=_QUALITY)
    return folder
