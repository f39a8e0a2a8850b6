"""Loss of a small transformer under DDP with several communication hooks at equal steps: scripts/hook_losses.py [HOOK]...

HOOK: none, fp16, powersgd:RANK, or a codec for psnode.ddp.comm_hook. Two processes train examples/charlm.py's transformer of
width 96 over gloo, with AdamW at .01, a cosine schedule and clipping at 1, for 700 steps of 2 x 8 windows. The script prints a
row per hook: the mean loss on the held-out text, the percentage by which this loss is above that of the first hook, the bytes
of gradients per rank and step, the factor by which these are fewer than the first hook's, and the median time of a step,
without the first five steps. With --json it prints a line of JSON per hook instead, with the losses after every
--evaluate-every steps. On emulated hosts (docs/emulated-hosts.md) each host starts one of the two processes, for one hook and
one seed:

    scripts/netlab.sh --hosts 2 --rate 100mbit --each -- .venv/bin/python scripts/hook_losses.py none --steps 25
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as powersgd
from torch.nn.parallel import DistributedDataParallel

import psnode.ddp
from psnode.task import load_task

RANKS, UNTIMED = 2, 5
EXAMPLE = str(Path(__file__).resolve().parents[1] / "examples" / "charlm.py")
USUAL = ("none", "fp16", "powersgd:4", "polar:rate=2", "polar:rate=1", "topk:ratio=0.005+fp16")


class Counted:
    """The bytes that PowerSGD sends per step.

    For an n x m gradient these are (n + m) RANK float32 values, or n m values if that is less.
    """

    def __init__(self, model: torch.nn.Module, rank: int) -> None:
        sizes = [(parameter.shape[0], parameter.numel() // parameter.shape[0]) for parameter in model.parameters()]
        self.bytes = 4 * sum(min(rank * (n + m), n * m) if min(n, m) > 1 else n * m for n, m in sizes)


def register(model: DistributedDataParallel, hook: str) -> Any:
    """Register `hook` at `model`. Return the state of a hook of psnode, or the bytes that another hook sends per step."""
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


class Plan(NamedTuple):
    """A training: its hook, seed, steps, steps between evaluations (0: one at the end), batch size and learning rate.

    `size`: options of the example.
    """

    hook: str
    seed: int
    steps: int
    every: int
    batch: int
    lr: float
    size: dict[str, str]


class Trained(NamedTuple):
    """The result of a training.

    The held-out loss at the end, the bytes of gradients per rank and step, the median seconds of a step, and losses by step.
    """

    loss: float
    sent: float
    seconds: float
    curve: list[tuple[int, float]]


def train(rank: int, plan: Plan, store: str, result: str) -> None:
    """Run one process of the training `plan`. Rank 0 writes the result, in JSON, to the file `result`."""
    hook, seed, steps, every, batch, lr, size = plan
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=RANKS)
    task = load_task(EXAMPLE, {"model": "transformer", **size})
    torch.manual_seed(seed)
    # With several buckets, the ranks may begin PowerSGD's reductions in different orders, and gloo then ends the process.
    buckets = {"bucket_cap_mb": 1000} if hook.startswith("powersgd:") else {}
    model = DistributedDataParallel(task.model(), **buckets)
    counted = register(model, hook)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / steps)))
    data, rng = task.train_data(), np.random.default_rng(seed)
    seconds, curve = list[float](), list[tuple[int, float]]()
    for step in range(1, steps + 1):
        began = time.perf_counter()
        indices = rng.integers(len(data), size=RANKS * batch)[rank * batch : (rank + 1) * batch]
        loss, _ = task.loss(model, data.batch(indices, None))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds.append(time.perf_counter() - began)
        if rank == 0 and (step == steps or (every and step % every == 0)):
            curve.append((step, held_out_loss(task, model.module)))
    if rank == 0:
        sent = counted if isinstance(counted, int) else counted.sent_bytes / steps
        found = Trained(curve[-1][1], sent, statistics.median(seconds[UNTIMED:]), curve)
        Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()


def held_out_loss(task: Any, model: torch.nn.Module) -> float:
    """Return the mean loss of `model` on the text that is not trained on."""
    held_out = task.eval_data()
    with torch.no_grad():
        batches = [np.arange(start, min(start + 64, len(held_out))) for start in range(0, len(held_out), 64)]
        return sum(float(task.loss(model, held_out.batch(each, None))[0]) * len(each) for each in batches) / len(held_out)


def outcome(plan: Plan) -> Trained | None:
    """Return the result of a training. On emulated hosts, it is None for ranks other than 0."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "result"
        if "RANK" in os.environ:
            train(int(os.environ["RANK"]), plan, "env://", str(result))
        else:
            torch.multiprocessing.spawn(train, (plan, f"file://{folder}/store", str(result)), nprocs=RANKS)
        return Trained(*json.loads(result.read_text())) if result.exists() else None


def main(arguments: Sequence[str]) -> int:
    """Print the table, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hooks", nargs="*", default=USUAL)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--evaluate-every", type=int, default=0, help="steps between evaluations; 0: only at the end")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--width", default="96")
    parser.add_argument("--layers", default="2")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each hook")
    given = parser.parse_args(arguments)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if given.steps <= UNTIMED:
        parser.error(f"--steps must be above {UNTIMED}: the first {UNTIMED} are not timed")
    if "RANK" in os.environ and (len(given.hooks), given.seeds, os.environ.get("WORLD_SIZE")) != (1, 1, str(RANKS)):
        parser.error(f"on emulated hosts give one hook and one seed, and {RANKS} hosts")
    place = os.environ.get("RANK", "0")
    if place == "0" and not given.json:
        columns = ("hook", "loss", "above the first's, %", "bytes a rank and step", "times fewer", "ms a step")
        print(f"| {' | '.join(columns)} |", "|---|---:|---:|---:|---:|---:|", sep="\n")
    first: list[float] = []
    whole = 0.0
    size = {"width": given.width, "layers": given.layers}
    for hook in given.hooks:
        plans = [
            Plan(hook, seed, given.steps, given.evaluate_every, given.batch, given.lr, size) for seed in range(1, given.seeds + 1)
        ]
        rows = [found for plan in plans if (found := outcome(plan))]
        if not rows:
            continue
        if given.json:
            print(json.dumps({"hook": hook, "seeds": [row._asdict() for row in rows]}), flush=True)
            continue
        losses = [row.loss for row in rows]
        sent, seconds = rows[-1].sent, statistics.median(row.seconds for row in rows)
        first, whole = first or losses, whole or sent
        above = [100 * (own / base - 1) for own, base in zip(losses, first, strict=True)]
        told = (hook, f"{statistics.fmean(losses):.3f}", f"{statistics.fmean(above):+.1f}", f"{sent:,.0f}", f"{whole / sent:.1f}")
        print(f"| {' | '.join((*told, f'{1e3 * seconds:.0f}'))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
