"""A training loop in a session, for scripts/signals.py: signal_program.py TRAIN_DIR SCHEME STEPS DATA_WORKERS MIN_WORKERS"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import psnode
from psnode.tasks.data.digits import originals


def main() -> None:
    """Train, or resume if the environment has PSNODE_RESUME=true."""
    train_dir, scheme, steps, data_workers, min_workers = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(1)
    images, labels = map(torch.from_numpy, originals())
    data = TensorDataset(images.float().flatten(1) / 16, labels)
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=int(data_workers))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))
    momentum = 0.0 if scheme == "dgc" else 0.9
    with psnode.session(
        model, train_dir=train_dir, scheme=scheme, lr=0.01, momentum=momentum, max_steps=int(steps), eval_freq=5, keep_last=2,
        threads=1, min_workers=int(min_workers),
    ) as s:  # fmt: skip
        for x, y in s.batches(loader):
            loss = cross_entropy(model(x), y)
            loss.backward()
            s.step(loss)


if __name__ == "__main__":
    main()
