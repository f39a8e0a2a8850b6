"""One contender of `psnode bench peers`: DistributedDataParallel over gloo; model, data, shards, seeds and loss are psnode's.

There is one process per host; its rank comes from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT:

    python -m psnode.bench.contest.ddp_process PROGRAM.json

PROGRAM.json holds the fields of `ProcessSettings`. Kinds of communication:

    none                          no DDP: each process trains on its own shard; the floor of any step time
    fp32:bucket=25                uncompressed gradients, in buckets of the given number of MB
    fp16:bucket=25, bf16:...      halved by torch's hook
    powersgd:rank=2,start=2,bucket=1000
                                  PowerSGD with error feedback and warm start from iteration `start` on. More than one
                                  bucket crashes some versions of torch over gloo, so the default makes one bucket
    psnode:CODEC                  psnode's hook (psnode.ddp) with its default settings, in buckets of 25 MB

Buffers are not broadcast in each step (psnode does not send them either); at a checkpoint they are averaged.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from psnode.bench.contest.step_marks import Metered
from psnode.codecs import get_codec
from psnode.config.declaration import nearest
from psnode.errors import ConfigurationError

if TYPE_CHECKING:
    import torch
    from torch.nn.parallel import DistributedDataParallel

KINDS: dict[str, dict[str, int]] = {
    "none": {},
    "fp32": {"bucket": 25},
    "fp16": {"bucket": 25},
    "bf16": {"bucket": 25},
    "powersgd": {"rank": 2, "start": 2, "bucket": 1000},
    "psnode": {"bucket": 25},
}


class Communication(NamedTuple):
    """A kind of KINDS with its parameters, all whole numbers. `codec`: the spec of psnode's hook."""

    kind: str
    parameters: dict[str, int]
    codec: str = ""

    @classmethod
    def parse(cls, spec: str) -> Communication:
        """Parse KIND[:name=value,...]. Raises ConfigurationError for an unknown kind or parameter."""
        kind, _, rest = spec.partition(":")
        if kind not in KINDS:
            raise ConfigurationError(f"DDP's communication must be one of {', '.join(KINDS)}, not {kind!r}{nearest(kind, KINDS)}")
        parameters = dict(KINDS[kind])
        if kind == "psnode":
            get_codec(rest)
            return cls(kind, parameters, rest)
        for item in rest.split(",") if rest else ():
            name, _, value = item.partition("=")
            if name not in parameters or not value.isdecimal() or int(value) < 1:
                known = ", ".join(f"{key}=1 or more" for key in parameters) or "no parameters"
                raise ConfigurationError(f"DDP's {kind} takes {known}, not {item!r}")
            parameters[name] = int(value)
        return cls(kind, parameters)

    def __str__(self) -> str:
        if self.codec:
            return f"{self.kind}:{self.codec}"
        return f"{self.kind}:{','.join(f'{key}={value}' for key, value in self.parameters.items())}".removesuffix(":")


@dataclass(frozen=True)
class ProcessSettings:
    """Settings of every process.

    `options`: options of `Metered`. `batch`: examples per worker. `evaluate_every`: steps between checkpoints; 0: no checkpoints.
    `cosine`: let `lr` fall along half a cosine to 0. `workers`: number of processes that take part, the first ones; 0: all.
    `directory`: folder for checkpoints (step-NNNNNNNN.safetensors, in the format of psnode's weights).
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
    """Train on this process's shard."""
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
    task = Metered(program.options)
    torch.manual_seed(program.seed)
    model = task.model()
    data = task.train_data()
    sampler = Sampler(len(data), rank, size, program.batch, 1, program.seed)
    trained = wrap(model, Communication.parse(program.communication))
    # fused: the fastest of torch's three implementations; its update takes about half the time
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
    dist.barrier()
    dist.destroy_process_group()


def wrap(model: torch.nn.Module, communication: Communication) -> torch.nn.Module:
    """Return `model` wrapped so that its gradients are averaged by `communication`."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
    from torch.nn.parallel import DistributedDataParallel

    kind, parameters, codec = communication
    if kind == "none":
        return model
    known = inspect.signature(DistributedDataParallel).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # the older name
    options: dict[str, Any] = {"bucket_cap_mb": parameters["bucket"], "gradient_as_bucket_view": True, buffers: False}
    found: DistributedDataParallel = DistributedDataParallel(model, **options)
    if kind == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=parameters["rank"], start_powerSGD_iter=parameters["start"]
        )
        found.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif kind == "psnode":
        from psnode.ddp import comm_hook

        found.register_comm_hook(*comm_hook(codec, model=model))
    elif kind != "fp32":
        found.register_comm_hook(None, default_hooks.fp16_compress_hook if kind == "fp16" else default_hooks.bf16_compress_hook)
    return found


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
    """Let rank 0 write the weights and the mean of all ranks' buffers."""
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
