"""`psnode bench record`: save one real gradient of any network and data set, for the benchmark and for tests of codecs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from psnode.config import Config
from psnode.config.effects import DENSE_RATE
from psnode.errors import ConfigurationError, DivergedError
from psnode.tasks.load import make_task


def record(config: Config, steps: int, output: Path) -> dict[str, np.ndarray]:
    """Train for `steps` steps of SGD (momentum .9) on one process, then save the gradient of the next batch.

    `output`: a safetensors file with a float32 tensor a parameter, in the order of model.named_parameters; those without a
    gradient are zeros. Weights, batches and augmentation come from config.seed. Raises ConfigurationError, DivergedError.
    """
    import torch
    from safetensors.numpy import save_file

    if output.is_dir() or output.suffix != ".safetensors":
        raise ConfigurationError(f"--output {output} must be a file that ends in .safetensors")
    task = make_task(config)
    torch.manual_seed(config.seed)
    model, data = task.model(), task.train_data()
    optimizer = torch.optim.SGD(model.parameters(), lr=DENSE_RATE if config.lr is None else config.lr, momentum=0.9)
    rng = np.random.default_rng(config.seed)
    model.train()
    for step in range(steps + 1):
        indices = rng.choice(len(data), min(config.batch_size, len(data)), replace=False)
        loss, _ = task.loss(model, data.batch(indices, rng))
        if not torch.isfinite(loss):
            raise DivergedError(f"the loss is {float(loss)} in step {step + 1}: lower --lr")
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if step < steps:
            optimizer.step()
    gradients = {
        name: np.zeros(tuple(p.shape), np.float32) if p.grad is None else p.grad.float().numpy()
        for name, p in model.named_parameters()
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    save_file(gradients, output, metadata={"model": config.task or config.network, "data": config.dataset, "steps": str(steps)})
    return gradients


def main(output: Path, steps: int, config: Config) -> int:
    """Record and name the files written; the exit code."""
    gradients = record(config, steps, output)
    values = np.concatenate([each.reshape(-1) for each in gradients.values()])
    zeros = 100 * float(np.mean(values == 0))
    print(f"{output}: {len(gradients)} tensors, {values.size:,} values, {zeros:.1f} % zeros, after {steps} steps")
    return 0
