"""Print a digest of the old runs' gradients and of their svd payloads; processors with equal digests give equal runs."""

from __future__ import annotations

import numpy as np
import torch
import xxhash
from old_task import OldTask  # type: ignore[import-not-found]  # beside this file

from psnode.codecs import get_codec

torch.manual_seed(3)
torch.set_num_threads(1)
task = OldTask()
model, data = task.model(), task.train_data()
digest = xxhash.xxh3_128()
for first in range(0, 512, 8):
    model.zero_grad()
    loss, _ = task.loss(model, data.batch(np.arange(first, first + 8), None))
    loss.backward()
    for parameter in model.parameters():
        digest.update(parameter.grad.numpy())
    for index in (0, 2):
        gradient = model[index].weight.grad.numpy()
        digest.update(get_codec("svd:rank=3").encode(gradient, rng=np.random.default_rng(first)).to_bytes())
print(digest.hexdigest())
