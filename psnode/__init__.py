"""psnode: distributed training of PyTorch models over slow links, with coded gradients.

Train a task of your own, with a master and two workers as threads of this process:

    psnode.run(MyTask(), psnode.Config(max_steps=100, local=2))

For a training loop of your own in an MPI job, see psnode.session. psnode.plan predicts how long the steps of such a loop take. To
use only the codecs, see psnode.codecs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import torch

    from psnode.config import Config
    from psnode.config.schedules import OwnRate
    from psnode.jobs.planning.given_model import OwnLoss
    from psnode.jobs.planning.own_model import OwnModelPlan, Rates
    from psnode.jobs.sessions.session import Session
    from psnode.task import Batch, Task

__version__ = "0.2.0"
__all__ = ["Config", "Task", "__version__", "plan", "rank", "run", "session"]

_HOMES = {"Config": "psnode.config", "Task": "psnode.task"}


def run(task: Task, config: Config) -> int:
    """Train `task` with the settings of `config`: on the ranks of an MPI job, or in this process if `config.local` is set.

    Returns the exit code with which the process should end. Raises PsnodeError.
    """
    from psnode.jobs.job import run as run_job

    return run_job(config, task)


def rank() -> int:
    """Return this process's rank in its MPI job: 0 for the master, 1 or more for workers. MPI need not have been started.

    A program that is started without mpirun has rank 1, since it is the only worker of its session.
    """
    from psnode.transport.mpi.environment import place

    here = place()
    return 1 if here is None else here.rank


def session(
    model: torch.nn.Module,
    *,
    train_dir: Path | str,
    constrain: Callable[[torch.nn.Module], None] | None = None,
    parameter_groups: Sequence[Mapping[str, Any]] = (),
    learning_rate: OwnRate | None = None,
    **settings: Any,
) -> Session:
    """Return a session in which the program's own loop trains `model` on the parameter server (docs/own-loop.md).

    `settings` are those of `psnode train`: scheme="topk:ratio=0.01", optimizer="sgd", lr=0.1, max_steps=1000, ... Raises
    ConfigurationError.
    """
    from psnode.jobs.sessions.session import Session

    return Session(
        model,
        train_dir=train_dir,
        constrain=constrain,
        parameter_groups=parameter_groups,
        learning_rate=learning_rate,
        **settings,
    )


def plan(
    model: torch.nn.Module,
    loss: OwnLoss,
    batch: Batch,
    *,
    workers: int,
    rate: Rates = ("100mbit", "1gbit", "10gbit"),
    schemes: str | Sequence[str] = (),
    round_trip: float = 0.2,
    burst: float = 0.0,
    cores: int | None = None,
    one_machine: bool = False,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> OwnModelPlan:
    """Predict the steps of a session that trains `model` on `workers` workers, and say whether to compress (docs/planning.md).

    `loss(model, batch)` returns the mean loss of a batch, a tensor of one number; it may also return a pair, as Task.loss
    does. `rate`: the rate of each host's link, such as "100mbit", or None if links cost no time; a sequence predicts steps for
    several rates. `schemes`: the schemes to compare, written as in `psnode plan --scheme`, by default qsgd and topk.
    `round_trip`: the milliseconds that a message takes to another host and back. `burst`: kilobytes that a link carries
    immediately after a pause. `cores`: the cores of each host, by default as many as this host has. `one_machine`: True if all
    ranks run on one host and share its cores. `progress` is called with a line before each part of the measurement. `settings`
    are those of `psnode train`.

    Forward and backward passes are measured on copies of the model, on its device. The call does not change the model, its
    gradients, the random generators, torch's number of threads or a process group, even if it fails. Raises ConfigurationError.
    """
    from psnode.jobs.planning.own_model import plan_own_model

    return plan_own_model(
        model,
        loss,
        batch,
        workers=workers,
        rate=rate,
        schemes=schemes,
        round_trip=round_trip,
        burst=burst,
        cores=cores,
        one_machine=one_machine,
        progress=progress,
        given=settings,
    )


def __getattr__(name: str) -> Any:
    """Import `name` at its first use, so that `import psnode` loads no other module of psnode."""
    if name not in _HOMES:
        raise AttributeError(f"module 'psnode' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
