"""`psnode bench record`: save a real gradient of any network and data set, for the benchmark and the tests of codecs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from psnode.config import Config
from psnode.config.effects import DENSE_RATE
from psnode.errors import ConfigurationError, DivergedError
from psnode.tasks.loading import make_task

if TYPE_CHECKING:
    from torch import nn


def gradients(config: Config, steps: int, count: int = 1) -> list[dict[str, np.ndarray]]:
    """Train for `steps` steps of SGD (momentum 0.9) in one process; return the gradients of the last `count` batches.

    The last gradient is that of one more batch after all steps; this batch does not change the weights. A gradient consists of
    a float32 array for each parameter, in the order of model.named_parameters. For a parameter without a gradient the array is
    zero. Weights, batches and augmentation depend only on config.seed. Raises ConfigurationError and DivergedError.
    """
    import torch

    task = make_task(config)
    torch.manual_seed(config.seed)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=DENSE_RATE if config.lr is None else config.lr, momentum=0.9)
    rng = np.random.default_rng(config.seed)
    model.train()
    found = []
    for step in range(steps + 1):
        indices = rng.choice(len(data), min(config.batch_size, len(data)), replace=False)
        loss, _ = task.loss(model, data.batch(indices, rng))
        if not torch.isfinite(loss):
            raise DivergedError(f"the loss is {float(loss)} in step {step + 1}: lower --lr")
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step > steps - count:
            found.append(_copied(model))
        if step < steps:
            optimizer.step()
    return found


def _copied(model: nn.Module) -> dict[str, np.ndarray]:
    return {
        name: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.float().numpy().copy()
        for name, p in model.named_parameters()
    }


def record(config: Config, steps: int, output: Path) -> dict[str, np.ndarray]:
    """Save and return the gradient of the batch that follows `steps` training steps (see `gradients`).

    `output`: a safetensors file, with a float32 tensor for each parameter. Raises ConfigurationError and DivergedError.
    """
    from safetensors.numpy import save_file

    if output.is_dir() or output.suffix != ".safetensors":
        raise ConfigurationError(f"--output {output} must be a file that ends in .safetensors")
    [found] = gradients(config, steps)
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(found, output, metadata={"model": config.task or config.network, "data": config.dataset, "steps": str(steps)})
    return found


def main(output: Path, steps: int, config: Config) -> int:
    """Record a gradient, print the name of the file and its contents, and return the exit code."""
    found = record(config, steps, output)
    values = np.concatenate([each.reshape(-1) for each in found.values()])
    zeros = 100 * float(np.mean(values == 0))
    print(f"{output}: {len(found)} tensors, {values.size:,} values, {zeros:.1f} % zeros, after {steps} steps")
    return 0
