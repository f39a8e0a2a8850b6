"""A residual network on CIFAR-10 as JPEG files, with your own torch Dataset, augmentation and DataLoader.

psnode train --local 2 --task examples/cifar10.py --task-option data=data/cifar10 --scheme topk:ratio=0.01 \
    --batch-size 64 --lr 0.1 --weight-decay 1e-4 --lr-schedule cosine --max-steps 4000 --train-dir runs/cifar10
psnode evaluate --train-dir runs/cifar10 --task examples/cifar10.py

The folder contains train/CLASS/*.jpg and test/CLASS/*.jpg. Any other small colour images can be used too. For the data set in
its published form you need no code of your own: --network resnet-20 --dataset Cifar10 --data-dir FOLDER.

Options, as --task-option KEY=VALUE
    data       the folder with train/ and test/
    processes  number of processes that decode and augment for each worker (0: the worker itself does, between two steps)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

from psnode.errors import ConfigurationError
from psnode.task import Batch, Task
from psnode.tasks import models

SIDE, PADDING = 32, 4
MEAN, DEVIATION = (torch.tensor(values).view(3, 1, 1) for values in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)))


class Images(Dataset):
    """Pairs of a float32 image (3, SIDE, SIDE) and the number of its class.

    The classes are the folders, ordered by their names.
    """

    def __init__(self, folder: Path, augment: bool) -> None:
        self.classes = sorted(path.name for path in folder.glob("*/")) if folder.is_dir() else []
        self._files = [(path, label) for label, name in enumerate(self.classes) for path in sorted((folder / name).glob("*.jpg"))]
        if not self._files:
            raise ConfigurationError(f"no images CLASS/*.jpg in {folder}: --task-option data=FOLDER has to name the folder above")
        self._augment = augment

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        path, label = self._files[index]
        with Image.open(path) as file:
            pixels = np.array(file.convert("RGB").resize((SIDE, SIDE)))
        image = (torch.from_numpy(pixels).permute(2, 0, 1) / 255 - MEAN) / DEVIATION
        return (shifted_or_mirrored(image) if self._augment else image), label


def shifted_or_mirrored(image: torch.Tensor) -> torch.Tensor:
    """Pad the image with PADDING zeros on all sides, and return a random window of the original size.

    In half of the cases the window is mirrored. The random numbers are torch's. psnode seeds them before each batch, so that a
    resumed run repeats them.
    """
    top, left = torch.randint(2 * PADDING + 1, (2,)).tolist()
    window = functional.pad(image, (PADDING,) * 4)[:, top : top + SIDE, left : left + SIDE]
    return window.flip(2) if torch.rand(()) < 0.5 else window


class Cifar10(Task):
    """A task with the cross-entropy as its loss and top1 as its metric."""

    def __init__(self, options: Mapping[str, str] | None = None) -> None:
        super().__init__(options)
        if unknown := sorted(set(self.options) - {"data", "processes"}):
            raise ConfigurationError(f"unknown task option {unknown[0]!r}: the choices are data, processes")
        if "data" not in self.options:
            raise ConfigurationError("add --task-option data=FOLDER, with train/CLASS/*.jpg and test/CLASS/*.jpg")
        self.folder, processes = Path(self.options["data"]), self.options.get("processes", "0")
        if not processes.isdecimal():
            raise ConfigurationError(f"task option processes must be a whole number, not {processes!r}")
        self.processes = int(processes)

    def model(self) -> nn.Module:
        """Return the 20-layer network of He et al.: Deep residual learning for image recognition, CVPR 2016, section 4.2."""
        return models.build("resnet-20", (3, SIDE, SIDE), len(Images(self.folder / "train", False).classes))

    def train_data(self) -> DataLoader:
        """Return a loader without batch size and shuffling. psnode determines both, and gives every worker different examples."""
        return DataLoader(Images(self.folder / "train", augment=True), num_workers=self.processes)

    def eval_data(self) -> Images:
        return Images(self.folder / "test", augment=False)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        images, labels = batch
        logits = model(images).float()
        return functional.cross_entropy(logits, labels), logits.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        return {"top1": float((outputs.argmax(1) == batch[1]).sum())}

    def size(self, batch: Batch) -> int:
        return len(batch[1])
