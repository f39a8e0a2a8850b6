"""One contender of `psnode bench peers`: DistributedDataParallel over gloo. Model, data, shards, seeds and loss are psnode's.

Each process reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT from its environment:

    python -m psnode.bench.contest.ddp_process PROGRAM.json

PROGRAM.json contains the fields of `ProcessSettings`. The kinds of communication are those of psnode.jobs.planning.ddp_hooks.
As in psnode, the model's buffers are not broadcast in each step, but averaged at each checkpoint.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from psnode.bench.contest.step_marks import metered
from psnode.jobs.planning.ddp_hooks import Communication, wrap

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of every process.

    `options`: options of `metered`. `batch`: examples per worker. `evaluate_every`: steps between checkpoints; 0: no
    checkpoints. `cosine`: True to lower `lr` along half a cosine to 0. `workers`: number of ranks that take part, from rank 0
    on; 0: all ranks. `directory`: folder for checkpoints (step-NNNNNNNN.safetensors, in the format of psnode's weights).
    """

    communication: str
    options: dict[str, str]
    directory: str
    batch: int
    steps: int
    lr: float
    momentum: float = 0.9
    seed: int = 1
    evaluate_every: int = 0
    workers: int = 0
    cosine: bool = False
    deadline: float = 120.0


def train(program: ProcessSettings) -> None:
    """Train the model of `program` on this process's shard."""
    import torch
    from torch import distributed as dist

    from psnode.tasks.data.prefetch import Prefetch
    from psnode.tasks.data.sampler import Sampler
    from psnode.worker.computation import Computation

    torch.set_num_threads(1)
    if program.workers:
        if int(os.environ["RANK"]) >= program.workers:
            return
        os.environ["WORLD_SIZE"] = str(program.workers)
    dist.init_process_group("gloo", timeout=timedelta(seconds=program.deadline))
    rank, size = dist.get_rank(), dist.get_world_size()
    task = metered(program.options)
    torch.manual_seed(program.seed)
    model = task.model()
    data = task.train_data()
    sampler = Sampler(len(data), rank, size, program.batch, 1, program.seed)
    trained = wrap(model, Communication.parse(program.communication))
    # fused: the fastest of torch's three implementations; an update takes about half the time of the others
    optimizer = torch.optim.SGD(model.parameters(), program.lr, momentum=program.momentum, fused=True)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, program.steps) if program.cosine else None
    computation = Computation(task, trained, torch.device("cpu"), rank=rank + 1, seed=program.seed, torch_lock=nullcontext())
    dist.barrier()
    with Prefetch(data, sampler, 0, program.steps) as batches:
        for step, batch in enumerate(batches, 1):
            optimizer.zero_grad()
            computation.run(step, batch, None)
            optimizer.step()
            if falling is not None:
                falling.step()
            if program.evaluate_every and (step % program.evaluate_every == 0 or step == program.steps):
                save(model, Path(program.directory), step, dist)
    # The group is not destroyed, and the process exits without destroying it (exit_after). If DDP dropped the last reference to
    # the group, it would hold Python's lock while it waited for gloo's threads, of which one may wait for this lock.
    dist.barrier()


def averaged_state(model: torch.nn.Module, dist: Any) -> dict[str, torch.Tensor]:
    """Return a copy of the state of `model`, in which floating-point buffers are means over all ranks. All ranks call this."""
    import torch

    state = {name: value.clone() for name, value in model.state_dict().items()}
    for name, _ in model.named_buffers():
        if name in state and torch.is_floating_point(state[name]):
            dist.all_reduce(state[name])
            state[name] /= dist.get_world_size()
    return state


def save(model: torch.nn.Module, directory: Path, step: int, dist: Any) -> None:
    """Let rank 0 write a checkpoint of the weights, with buffers averaged over all ranks. All ranks call this."""
    from psnode.records import checkpoint, tensorfile

    state = averaged_state(model, dist)
    if dist.get_rank() == 0:
        directory.mkdir(parents=True, exist_ok=True)
        tensorfile.write_tensors(directory / f"{checkpoint.step_directory(step)}.safetensors", state)
    dist.barrier()


def exit_after(module: str, work: Callable[[], None]) -> NoReturn:
    """Call `work` and exit with code 0, or print an error in one line that begins with `module` and exit with code 1.

    gloo's threads outlive a failed collective, so the process exits without joining them.
    """
    code = 1
    try:
        work()
        code = 0
    except Exception as error:
        print(f"{module}: error: {type(error).__name__}: {' '.join(str(error).split())}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(path: str) -> None:
    """Run the program in the file `path`."""
    exit_after("psnode.bench.contest.ddp_process", lambda: train(ProcessSettings(**json.loads(Path(path).read_text()))))


if __name__ == "__main__":
    main(*sys.argv[1:])
