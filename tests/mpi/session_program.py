"""A plain PyTorch loop that uses psnode.session; tests/mpi/test_session.py runs this program on every rank.

session_program.py DIRECTORY JSON. The JSON holds `settings` of the session and options of the loop:

fail         [rank, step]: raise an exception at this step
fail_behind  [rank, step]: raise an exception after the step is taken
leave        [rank, step]: leave the loop at this step
pass_over    [rank, step]: take no step with the batch
repeat       [rank, step]: run a second backward pass
die          [rank, step]: be killed at this step
augment      add random noise to every example
dropout      use a dropout layer
halve        halve the learning rate after every given number of steps, by a schedule of the program
evaluate     by version, the loss that rank 1 reports as its evaluation
workers      the number of processes of the DataLoader
stream       use the loader of an IterableDataset; the value is the number of steps per epoch

Each rank writes rank-R.json: the examples drawn and the session's figures after each step, the lengths of its loop, the digest of
its weights, its version and loss, and true if each tensor has its own memory.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import nn
from torch.nn import functional

import psnode

EXAMPLES, WIDTH, CLASSES = 64, 32, 5


class Points(torch.utils.data.Dataset[Any]):
    """Random points with their indices."""

    def __init__(self, augment: bool = False) -> None:
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(EXAMPLES, WIDTH, generator=generator)
        self.y = (self.x @ torch.randn(WIDTH, CLASSES, generator=generator)).argmax(1)
        self._augment = augment

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> Any:
        noise = 0.1 * torch.randn(WIDTH) if self._augment else 0.0
        return index, self.x[index] + noise, self.y[index]


class Stream(torch.utils.data.IterableDataset[Any]):
    """A stream of points that differs between ranks."""

    def __iter__(self) -> Any:
        rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
        data = Points()
        return (data[index] for index in range(rank, EXAMPLES, 4))


def network(dropout: float = 0.0) -> nn.Module:
    """Return the same network on every rank."""
    torch.manual_seed(11)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, CLASSES))


def digest(model: nn.Module) -> str:
    """Return the digest of a model's state dict, sorted by name."""
    parts = (value.numpy().tobytes() for _, value in sorted(model.state_dict().items()))
    return xxhash.xxh3_128_hexdigest(b"".join(parts))


def main(folder: Path, plan: dict[str, Any]) -> None:
    data, model = Points(plan.get("augment", False)), network(plan.get("dropout", 0.0))
    loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True, num_workers=plan.get("workers", 0))
    if stream := plan.get("stream"):
        loader = torch.utils.data.DataLoader(Stream(), batch_size=8)
    drawn, figures, best = [], [], []
    own = {}
    if halve := plan.get("halve"):
        own = {"learning_rate": lambda step, lr, **known: lr * 0.5 ** (step // halve)}
    with psnode.session(model, train_dir=folder / "run", tensorboard=False, threads=1, **own, **plan["settings"]) as s:
        batches = s.batches(loader, steps_per_epoch=stream)
        left = len(batches)
        for indices, x, y in batches:
            print(f"rank {s.rank} at {s.version}", flush=True)
            if [s.rank, s.version] == plan.get("fail"):
                raise ValueError("the program's own mistake")
            if [s.rank, s.version] == plan.get("die"):
                os.kill(os.getpid(), signal.SIGKILL)
            if [s.rank, s.version] == plan.get("pass_over"):
                continue
            drawn.append(indices.tolist())
            output = model(x)
            loss = functional.cross_entropy(output, y)
            loss.backward(retain_graph=True)
            if [s.rank, s.version] == plan.get("repeat"):
                loss.backward()
            s.step(loss, {"top1": int((output.argmax(1) == y).sum())})
            if (loss := plan.get("evaluate", {}).get(str(s.version))) is not None and s.rank == 1:
                best.append(s.evaluated(loss=loss, perplexity=math.exp(loss), examples=64))
            figures.append([s.version, s.epoch, s.lr, s.gradient_norm])
            if [s.rank, s.version] == plan.get("fail_behind"):
                raise ValueError("the program's own mistake")
            if [s.rank, s.version] == plan.get("leave"):
                break
    found = {
        "own_memory": all(value.untyped_storage().nbytes() == value.nbytes for value in model.state_dict().values()),
        "drawn": drawn,
        "best": best,
        "figures": figures or [[s.version, s.epoch, s.lr, s.gradient_norm]],
        "lengths": [left, s.steps_per_epoch, s.total_steps],
        "digest": digest(model),
        "version": s.version,
        "loss": float(functional.cross_entropy(model.eval()(data.x), data.y).detach()),
    }
    (folder / f"rank-{s.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
