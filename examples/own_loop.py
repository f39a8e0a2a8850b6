"""Your own training loop, in plain PyTorch, on psnode's parameter server.

psnode launch -n 2 -- examples/own_loop.py runs/own-loop

Without psnode, the two lines with `psnode.session` and `s.batches` would be loops over the epochs and the loader, and s.step
would be the optimizer's zero_grad and step.
"""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import psnode
from psnode.tasks.data.digits import originals

images, labels = map(torch.from_numpy, originals())  # 1797 handwritten digits of 8 x 8
images = images.float().flatten(1) / 16
loader = DataLoader(TensorDataset(images[:1437], labels[:1437]), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))

with psnode.session(model, train_dir=sys.argv[1], scheme="topk:ratio=0.05", lr=0.05, momentum=0.9, max_steps=200) as s:
    for x, y in s.batches(loader):
        loss = cross_entropy(model(x), y)
        loss.backward()
        s.step(loss)

model.eval()
right = (model(images[1437:]).argmax(1) == labels[1437:]).float().mean().item()
print(f"rank {s.rank}: {s.version} steps, {100 * right:.1f} % of 360 digits never trained on are right")
