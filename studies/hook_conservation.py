"""`python -m studies.hook_conservation`: with DDP's communication hook, no part of a gradient is lost.

The applied and the kept parts must add up to the given gradients, which are known in advance. For each codec under error
feedback, and in each case, the study prints the largest |applied + kept - given| / |given| of all tensors. `applied`: the sum
of the gradients in .grad over all steps of the optimizer, times the number of ranks. `kept`: the sum of the residuals of all
ranks at the end. `given`: the sum of the gradients of all ranks in the steps that were taken. The exit code is 1 if an error is
above 1e-5.
"""

from __future__ import annotations

import gc
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from psnode import ddp
from psnode.codecs.table import CODECS
from psnode.config.declaration import option
from psnode.errors import PsnodeError
from studies.harness import Column, Found, Result, Study, at, main

SHAPES = {"a": (40, 60), "b": (7,), "c": (70, 33), "d": (20, 50)}
CASES = ("unused", "skipped", "scaled", "accumulated", "no_sync", "subgroup")
MIXED = "mixed"  # all other cases except the last, in turn, in one training
BOUND = 1e-5
Tensors = dict[str, torch.Tensor]


class Known(nn.Module):
    """A model with known gradients. Its loss is the sum of <w, g> over all `gradients` g, each with its parameter w."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterDict({name: nn.Parameter(torch.zeros(shape)) for name, shape in SHAPES.items()})

    def forward(self, gradients: Tensors) -> torch.Tensor:
        return torch.stack([(self.weights[name] * gradient).sum() for name, gradient in gradients.items()]).sum()


def passes(case: str, rank: int, step: int) -> Iterator[Tensors]:
    """Yield the gradients of rank `rank` in step `step`, for one backward pass after another."""
    spoilt = (1, 3) if case == MIXED else (3,)
    case, step, index = kind(case, step), step // (len(CASES) - 1) if case == MIXED else step, step
    several = case in ("accumulated", "no_sync")
    for number in range(2 if several else 1):
        generator = torch.Generator().manual_seed(100_000 * rank + 2 * index + number)
        found = {name: torch.randn(shape, generator=generator) ** 3 for name, shape in SHAPES.items()}
        if case == "unused" and step % 3 == 1:
            del found["a"], found["b"]  # without gradients on all ranks
        if case == "unused" and step % 3 == 2 and rank == 0:
            del found["c"]  # without a gradient on only one rank
        if several and step % 2 and number == 1:
            del found["a"]  # used in the previous pass
        if several and step % 3 == 1:
            found.pop("c", None)
        if case in ("skipped", "scaled") and step % 5 in spoilt and rank == dist.get_world_size() - 1:
            found["c"][3, 3] = torch.inf  # this occurs after DDP has reduced other buckets
        yield found


def kind(case: str, step: int) -> str:
    """Return the case to which step `step` belongs.

    In MIXED, the steps belong to all other cases in turn, except the last one, for which DDP is constructed differently.
    """
    return CASES[step % (len(CASES) - 1)] if case == MIXED else case


def errors(codec: str, case: str, steps: int, groups: list[dist.ProcessGroup]) -> dict[str, float]:
    """Train with `codec` in the case `case`, and return the relative error of each tensor."""
    rank, group = dist.get_rank(), dist.group.WORLD
    if case in ("subgroup", MIXED):
        group = groups[rank // 2]
    network = Known()
    model = DistributedDataParallel(
        network,
        bucket_cap_mb=0.01,
        process_group=group,
        find_unused_parameters=case in ("unused", "accumulated", "no_sync", MIXED),
        gradient_as_bucket_view=steps % 2 == 1,
    )
    state, hook = ddp.comm_hook(codec, feedback="ef", model=network)
    model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2, enabled=case in ("scaled", MIXED))
    given = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    applied = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in SHAPES.items()}
    for step in range(steps):
        optimizer.zero_grad(set_to_none=step % 4 < 2)
        all_passes = list(passes(case, rank, step))
        for number, found in enumerate(all_passes):
            with model.no_sync() if kind(case, step) == "no_sync" and number == 0 else nullcontext():
                scaler.scale(model(found)).backward()
        scaler.unscale_(optimizer)
        means = {name: each.grad for name, each in network.weights.items() if each.grad is not None}
        if all(mean.isfinite().all() for mean in means.values()):
            for name, mean in means.items():
                applied[name] += dist.get_world_size(group) * mean.double()
            for found in all_passes:
                for name, gradient in found.items():
                    given[name] += gradient.double()
        scaler.step(optimizer)
        scaler.update()
    kept = state.state_dict()
    return compared(given, applied, kept, kept.get("scale", 1.0), group)


def compared(given: Tensors, applied: Tensors, kept: dict[str, Any], scale: float, group: Any) -> dict[str, float]:
    """Return |applied + kept - given| / |given| of each tensor, over all ranks of the group."""
    found = {}
    for name, total in given.items():
        residual = kept.get(f"memories/residual/weights.{name}", torch.zeros(total.numel())).double().reshape(total.shape) / scale
        both = torch.stack([residual, total])
        dist.all_reduce(both, group=group)
        found[name] = float((applied[name] + both[0] - both[1]).norm() / both[1].norm())
    return found


def work(rank: int, ranks: int, meeting: str, codecs: list[str], cases: list[str], steps: int, out: Any) -> None:
    """Run one rank: all codecs in all cases, one after another in one job."""
    gc.freeze()  # each hook searches all objects for its DDP, and torch alone has half a million objects
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    pairs = [list(range(first, min(first + 2, ranks))) for first in range(0, ranks, 2)] if ranks > 2 else [[0], [1]]
    groups = [dist.new_group(pair) for pair in pairs]
    if ranks == 2:
        groups = [groups[rank]]
    table = {codec: {case: max(errors(codec, case, steps, groups).values()) for case in cases} for codec in codecs}
    worst = torch.tensor([list(row.values()) for row in table.values()], dtype=torch.float64)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX)
    if rank == 0:
        out.put(worst.tolist())
    dist.destroy_process_group()


def table(ranks: int, codecs: list[str], cases: list[str], steps: int) -> list[list[float]]:
    """Run the ranks, and return the largest error of each codec in each of `cases`.

    The ranks are forks, so that torch is imported only once. No other thread runs in this process.
    """
    import torch._dynamo  # noqa: F401  # DDP's constructor imports it

    context = multiprocessing.get_context("fork")
    out = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        named = [(rank, ranks, f"{folder}/meeting", codecs, cases, steps, out) for rank in range(ranks)]
        started = [context.Process(target=work, args=each) for each in named]
        for process in started:
            process.start()
        for process in started:
            process.join()
    if any(process.exitcode for process in started):
        raise PsnodeError("a rank has failed: see its messages above")
    found: list[list[float]] = out.get()
    return found


TARGETS = tuple(name for name, entry in CODECS.items() if entry.target)


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.hook_conservation`."""

    ranks: tuple[int, ...] = option((2, 3), "Repeat.", minimum=2, repeated=True)
    steps: int = option(50, "Steps of each case.", minimum=1)
    codec: tuple[str, ...] = option(TARGETS, "Repeat.", choices=TARGETS, repeated=True)
    case: tuple[str, ...] = option(CASES, "Repeat.", choices=(*CASES, MIXED), repeated=True)


def measure(options: Options) -> Found:
    """Return a row for each number of ranks and codec: `errors` by case. For all rows together: `worst`, the largest error."""
    rows: list[dict[str, Any]] = [
        {"ranks": f"{ranks} ranks", "codec_id": codec, "errors": dict(zip(options.case, row, strict=True))}
        for ranks in options.ranks
        for codec, row in zip(options.codec, table(ranks, list(options.codec), list(options.case), options.steps), strict=True)
    ]
    return Found(rows, {"worst": max(value for row in rows for value in row["errors"].values())})


def _columns(result: Result) -> list[Column]:
    cases = [Column(case, at(".0e", "errors", case)) for case in result["case"]]
    return [Column("codec", "{codec_id}", left=True), *cases]


STUDY = Study(
    Options,
    measure,
    _columns,
    foot=lambda result: f"Largest: {result['worst']:.1e}, bound {BOUND:.0e}.",
    tables="ranks",
    passed=lambda result: bool(result["worst"] < BOUND),
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
