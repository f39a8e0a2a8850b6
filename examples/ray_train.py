"""Ray Train's TorchTrainer, whose workers exchange coded gradients.

python examples/ray_train.py runs/ray --workers 2 --codec topk:ratio=0.05+fp16

A few lines of `train` are for psnode. All other lines are a training loop for Ray, on the CPU over gloo. Checkpoints also
contain the residual of every rank: the values that the codec has left out so far. The command resumes from the last checkpoint.
Ray does so too after it has restarted workers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, prepare_model
from torch import nn
from torch.nn.functional import cross_entropy

import psnode.ddp
from psnode.tasks.data.digits import originals

BATCH = 32


def train(settings: dict[str, Any]) -> nn.Module:
    """Run the training loop of one worker.

    `settings`: the codec ("" for DDP's own all-reduce) and the number of epochs.
    """
    rank, workers = ray.train.get_context().get_world_rank(), ray.train.get_context().get_world_size()
    images, labels = map(torch.from_numpy, originals())  # 1797 handwritten digits of 8 x 8
    images = images.float().flatten(1) / 16
    torch.manual_seed(1)
    network = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    model = prepare_model(network)  # is in DistributedDataParallel if there are several workers
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9)
    state = everyone = None
    if settings["codec"]:
        state, hook = psnode.ddp.comm_hook(settings["codec"], model=network)
        model.register_comm_hook(state, hook)
        everyone = psnode.ddp.AllRanks(state)

    first, checkpoint = 0, ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "checkpoint.pt", weights_only=True)  # noqa: TID251
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        if everyone is not None:
            everyone.load_state_dict(saved["hook"])
        first = saved["epoch"]

    for epoch in range(first, settings["epochs"]):
        order = torch.randperm(1437, generator=torch.Generator().manual_seed(epoch))[rank::workers]
        for some in order.split(BATCH)[: 1437 // workers // BATCH]:
            loss = cross_entropy(model(images[some]), labels[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        saved = {"epoch": epoch + 1, "model": network.state_dict(), "optimizer": optimizer.state_dict()}
        if everyone is not None:
            saved["hook"] = everyone.state_dict()  # called on every rank
        with torch.no_grad():
            right = (network(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
        with tempfile.TemporaryDirectory() as folder:
            if rank == 0:
                torch.save(saved, Path(folder) / "checkpoint.pt")
            told = {"epoch": epoch + 1, "accuracy": right, "sent": state.sent_bytes if state else 0}
            ray.train.report(told, checkpoint=Checkpoint.from_directory(folder) if rank == 0 else None)
    return network


def trainer(loop: Any, folder: Path, workers: int, settings: dict[str, Any], failures: int = 0) -> TorchTrainer:
    """Return a trainer on the CPU whose run is stored in `folder`.

    If the run exists, the trainer continues from its last checkpoint.
    """
    return TorchTrainer(
        loop,
        train_loop_config=settings,
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=workers),
        run_config=RunConfig(
            name=folder.name, storage_path=str(folder.resolve().parent), failure_config=FailureConfig(max_failures=failures)
        ),
    )


def main() -> None:
    """Train, and print the last report of rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--codec", default="topk:ratio=0.05+fp16")
    parser.add_argument("--epochs", type=int, default=4)
    given = parser.parse_args()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    settings = {"codec": given.codec, "epochs": given.epochs}
    print(trainer(train, given.folder, given.workers, settings, failures=2).fit().metrics)


if __name__ == "__main__":
    main()
