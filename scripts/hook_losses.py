"""Loss of a small transformer under DDP with several communication hooks, after the same steps: scripts/hook_losses.py [HOOK]...

HOOK: none, fp16, powersgd:RANK, or a codec for psnode.ddp.comm_hook. Two processes over gloo, examples/charlm.py's transformer of
width 96, AdamW at .01 with a cosine, clipping at 1, 700 steps of 2 x 8 windows; `--seeds N`, `--steps N`. Prints a row a hook:
mean loss over the held-out text, percent above the first hook's, bytes of gradients a rank and step beside float32's.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import psnode.ddp
from psnode.task import load_task

RANKS, BATCH, RATE = 2, 8, 0.01
EXAMPLE = str(Path(__file__).resolve().parents[1] / "examples" / "charlm.py")
USUAL = ("none", "fp16", "powersgd:4", "polar:rate=2", "polar:rate=1", "topk:ratio=0.005+fp16")


class Counted:
    """Counts the float32 values of gradients that PowerSGD's matrices stand for: (n + m) RANK of each n x m, else all."""

    def __init__(self, model: torch.nn.Module, rank: int) -> None:
        sizes = [(parameter.shape[0], parameter.numel() // parameter.shape[0]) for parameter in model.parameters()]
        self.bytes = 4 * sum(min(rank * (n + m), n * m) if min(n, m) > 1 else n * m for n, m in sizes)


def register(model: DistributedDataParallel, hook: str) -> Any:
    """Register `hook`; the state of psnode's, or the bytes a step of the others."""
    whole = 4 * sum(parameter.numel() for parameter in model.module.parameters())
    if hook == "none":
        return whole
    if hook == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return whole // 2
    if hook.startswith("powersgd:"):
        rank = int(hook.partition(":")[2])
        state = powersgd.PowerSGDState(None, matrix_approximation_rank=rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powersgd.powerSGD_hook)
        return Counted(model.module, rank).bytes
    state, own = psnode.ddp.comm_hook(hook, model=model.module)
    model.register_comm_hook(state, own)
    return state


def train(rank: int, hook: str, seed: int, steps: int, store: str, result: str) -> None:
    """A process of the job; rank 0 writes loss and bytes to `result`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    task = load_task(EXAMPLE, {"model": "transformer", "width": "96"})
    torch.manual_seed(seed)
    model = DistributedDataParallel(task.model())
    counted = register(model, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    data, rng = task.train_data(), np.random.default_rng(seed)
    for _ in range(steps):
        indices = rng.integers(len(data), size=RANKS * BATCH)[rank * BATCH : (rank + 1) * BATCH]
        loss, _ = task.loss(model, data.batch(indices, None))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    if rank == 0:
        held_out = task.eval_data()
        with torch.no_grad():
            batches = [np.arange(start, min(start + 64, len(held_out))) for start in range(0, len(held_out), 64)]
            losses = [float(task.loss(model.module, held_out.batch(each, None))[0]) * len(each) for each in batches]
        sent = counted if isinstance(counted, int) else counted.sent_bytes / steps
        Path(result).write_text(f"{sum(losses) / len(held_out)} {sent}")
    dist.destroy_process_group()


def main(arguments: Sequence[str]) -> int:
    """Print the table; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hooks", nargs="*", default=USUAL)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=700)
    given = parser.parse_args(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    print("| hook | loss | above the first's, % | bytes a rank and step | times fewer |", "|---|---:|---:|---:|---:|", sep="\n")
    first: list[float] = []
    whole = 0.0
    for hook in given.hooks:
        losses = []
        for seed in range(1, given.seeds + 1):
            with tempfile.TemporaryDirectory() as folder:
                result = Path(folder) / "result"
                settings = (hook, seed, given.steps, str(Path(folder) / "store"), str(result))
                torch.multiprocessing.spawn(train, settings, nprocs=RANKS)
                loss, sent = map(float, result.read_text().split())
            losses.append(loss)
        first, whole = first or losses, whole or sent
        above = [100 * (own / base - 1) for own, base in zip(losses, first, strict=True)]
        row = (hook, f"{statistics.fmean(losses):.3f}", f"{statistics.fmean(above):+.1f}", f"{sent:,.0f}", f"{whole / sent:.1f}")
        print(f"| {' | '.join(row)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
