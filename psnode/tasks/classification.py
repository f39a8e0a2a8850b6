"""The task that combines a network and a data set that come with psnode."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from psnode.task import Batch, Task
from psnode.tasks import data, models
from psnode.tasks.data import ImageData

if TYPE_CHECKING:
    import torch


class Classification(Task):
    """Classification of images with cross-entropy, which records top1 and top5.

    The arguments are those of `psnode.tasks.models.build` and `psnode.tasks.data.load`; `options` are the options of the
    data set. The constructor reads no examples. It raises ConfigurationError for an unknown name, for missing training
    files, and for a network that cannot take the images.
    """

    def __init__(
        self,
        network: str,
        dataset: str,
        data_dir: str | Path | None = None,
        download: bool = False,
        seed: int = 0,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(options)
        self.network = models.resolve(network)
        self.dataset = data.resolve(dataset)
        self._source = (data_dir, download, seed, self.options)
        self.image_shape, self.classes = data.check(self.dataset, data_dir, True, download, self.options)
        models.check(self.network, self.image_shape)

    def model(self) -> torch.nn.Module:
        return models.build(self.network, self.image_shape, self.classes)

    def train_data(self) -> ImageData:
        return self._load(train=True)

    def eval_data(self) -> ImageData:
        return self._load(train=False)

    def _load(self, train: bool) -> ImageData:
        data_dir, download, seed, options = self._source
        return data.load(self.dataset, data_dir, train, download, seed, options)

    def loss(self, model: torch.nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean cross-entropy in float32, and the logits (B, classes) float32."""
        from torch.nn import functional

        images, labels = batch
        logits = model(images).float()
        return functional.cross_entropy(logits, labels), logits.detach()

    def metrics(self, outputs: torch.Tensor, batch: Batch) -> dict[str, float]:
        """Return the number of examples whose label is the likeliest class (top1) or among the five likeliest classes (top5)."""
        _, labels = batch
        likeliest = outputs.topk(min(5, self.classes), dim=1).indices
        hits = likeliest == labels[:, None]
        return {"top1": float(hits[:, 0].sum()), "top5": float(hits.sum())}

    def size(self, batch: Batch) -> int:
        return len(batch[1])
