"""The processes of a DDP contender: python -m psnode.bench.convergence.ddp_training PROGRAM.json

Model, shards, batches, seeds, loss, learning rates and evaluation are those of psnode. Optimizer, exchange and clipping are
those of torch. A process reads its rank and the number of processes from RANK and WORLD_SIZE. Rank 0 evaluates and writes the
result.
"""

from __future__ import annotations

import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psnode.bench.contest.ddp_process import averaged_state, exit_after
from psnode.bench.convergence.ddp_run import RESULT, program_of
from psnode.config import Config
from psnode.config.plain_json import to_json
from psnode.config.schedules import learning_rate
from psnode.errors import DivergedError, in_one_line
from psnode.jobs.planning.ddp_hooks import Communication, optimizer_of, payload_bytes, wrap
from psnode.records.metrics import write_atomically

if TYPE_CHECKING:
    pass

_DEADLINE = timedelta(hours=1)  # time limit of an exchange; other ranks wait in it while rank 0 evaluates


@dataclass
class TrainingFigures:
    """Figures of the training so far: points of the curve, seconds of each step, and bytes contributed to all-reduces."""

    points: list[dict[str, Any]] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    payload: int = 0


def train(communication: Communication, config: Config, evaluate_every: int) -> dict[str, Any]:
    """Train on this process's shard, and return points of the curve, step times and coordinates. Only rank 0 returns points."""
    import torch
    from torch import distributed as dist

    from psnode.evaluator import evaluate
    from psnode.tasks.data.given import data_of, eval_data_of
    from psnode.tasks.data.prefetch import Prefetch
    from psnode.tasks.data.sampler import Sampler
    from psnode.tasks.loading import make_task
    from psnode.worker.computation import Computation

    rank, size = dist.get_rank(), dist.get_world_size()
    task, device = make_task(config), torch.device("cpu")
    torch.manual_seed(config.seed)
    model = task.model()
    evaluated = task.model() if rank == 0 else None
    data = data_of(task.train_data(), config, workers=size)
    sampler = Sampler(len(data), rank, size, config.batch_size, 1, config.seed)
    held_out = eval_data_of(task.eval_data(), config) if rank == 0 else None
    trained = wrap(model, communication)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    shapes = [parameter.shape for parameter in parameters]
    optimizer = optimizer_of(config, parameters)
    last = config.total_steps(sampler.steps_per_epoch, 0)
    rates = learning_rate(config, sampler.steps_per_epoch, own=task.learning_rate)
    computation = Computation(task, trained, device, rank=rank + 1, seed=config.seed, torch_lock=nullcontext())
    progress = TrainingFigures()
    with Prefetch(data, sampler, 0, last) as batches:
        for step, batch in enumerate(batches, 1):
            began = time.perf_counter()
            for group in optimizer.param_groups:
                group["lr"] = rates(step - 1)
            optimizer.zero_grad()
            computation.run(step, batch, None)
            if config.clip_grad_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, config.clip_grad_norm)
            optimizer.step()
            progress.seconds.append(time.perf_counter() - began)
            progress.payload += payload_bytes(communication, shapes, step)
            if step == last or (evaluate_every and step % evaluate_every == 0):
                state = averaged_state(model, dist)
                if evaluated is not None and held_out is not None:
                    evaluated.load_state_dict(state)
                    found = evaluate(task, evaluated, held_out, step, config.test_batch_size, device)
                    point = {"step": step, "loss": found.loss, "top1": found.top1, "payload": progress.payload}
                    progress.points.append({**point, "seconds": sum(progress.seconds)})
    coordinates = sum(parameter.numel() for parameter in parameters)
    return {"points": progress.points, "seconds": progress.seconds, "coordinates": coordinates}


def main(path: str) -> None:
    """Run the program in the file `path`."""
    import torch
    from torch import distributed as dist

    communication, config, evaluate_every, directory = program_of(Path(path))
    torch.set_num_threads(1)

    def work() -> None:
        dist.init_process_group("gloo", timeout=_DEADLINE)
        try:
            result = train(Communication.parse(communication), config, evaluate_every)
        except DivergedError as error:  # the other ranks diverge in the same step, or fail when this rank ends
            write_atomically(directory / RESULT, to_json({"diverged": in_one_line(error)}).encode() + b"\n")
            raise
        if dist.get_rank() == 0:
            write_atomically(directory / RESULT, to_json(result).encode() + b"\n")
        dist.barrier()

    exit_after("psnode.bench.convergence.ddp_training", work)


if __name__ == "__main__":
    main(*sys.argv[1:])
