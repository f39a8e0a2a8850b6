"""Options of `psnode launch --export slurm`, which prints a batch script instead of starting a job."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import click

from psnode.config import Config
from psnode.errors import ConfigurationError

_LOG = logging.getLogger(__name__)

_OPTIONS = (
    click.option("--workers-per-node", type=click.IntRange(1), metavar="N", help="Workers per node [1]."),
    click.option(
        "--master",
        type=click.Choice(["beside", "apart"]),
        help="Run the master on the first node with workers, or on a node of its own [beside].",
    ),
    click.option("--job-name", "name", metavar="NAME", help="Name of the job in Slurm's queue [psnode]."),
    click.option("--partition", metavar="NAME", help="Partition of Slurm."),
    click.option("--account", metavar="NAME", help="Account of Slurm."),
    click.option("--time", metavar="TIME", help="Time limit in sbatch's notation: 90, 4:00:00, 2-12."),
    click.option("--gres", metavar="LIST", help="Generic resources of every node, such as gpu:4."),
    click.option("--cpus-per-rank", type=click.IntRange(1), metavar="N", help="Cores per rank."),
    click.option(
        "--starter", type=click.Choice(["mpirun", "srun"]), help="Program that starts the ranks; srun needs PMIx [mpirun]."
    ),
    click.option(
        "--sbatch", "extra", multiple=True, metavar="OPTION", help="Another option of sbatch, such as qos=long; repeatable."
    ),
)
_FLAGS = {"name": "--job-name", "extra": "--sbatch"}


def exportable(function: Callable[..., int]) -> Callable[..., int]:
    """Return `function`, a command, with the option --export and the options of a batch script.

    `function` gets the options of the script as `batch`, which is None if --export is not given.
    """
    names = ["workers_per_node", "master", "name", "partition", "account", "time", "gres", "cpus_per_rank", "starter", "extra"]

    @functools.wraps(function)
    def collected(export: str | None, **given: Any) -> int:
        batch = {name: value for name in names if (value := given.pop(name)) not in (None, ())}
        if export is None and batch:
            flag = _FLAGS.get(next(iter(batch)), "--" + next(iter(batch)).replace("_", "-"))
            raise ConfigurationError(f"{flag} is for a batch script: add --export slurm, or leave it out")
        return function(batch=batch if export else None, **given)

    described = click.option("--export", type=click.Choice(["slurm"]), help="Start nothing: print a batch script.")
    for option in reversed((described, *_OPTIONS)):
        collected = option(collected)
    return collected


def show(batch: dict[str, Any], workers: int, command: Sequence[str], config: Config | None, options: dict[str, Any]) -> int:
    """Print the batch script for the psnode command `command`, and return the exit code.

    `config`: the configuration of the training; None if the command is no training. Raises ConfigurationError if the command
    is no training, has no --train-dir, or has options that do not apply.
    """
    from psnode.jobs.slurm import BatchJob, batch_script

    if config is None:
        raise ConfigurationError("--export needs a training run: launch --export slurm -n P -- train --train-dir runs/first")
    if config.train_dir is None:
        raise ConfigurationError("--export needs --train-dir: a stopped job resumes from that directory")
    for option in ("hostfile", "restarts"):
        if options[option]:
            raise ConfigurationError(f"--{option} has no meaning with --export: Slurm chooses hosts, and queues the job again")
    mpirun_args = options["mpirun_args"]
    if mpirun_args and batch.get("starter") == "srun":
        raise ConfigurationError("--mpirun-arg has no meaning with --starter srun: leave it out")
    context = click.get_current_context()
    if context.get_parameter_source("kill_after") is not click.core.ParameterSource.DEFAULT:
        batch["kill_after"] = options["kill_after"]
    job = BatchJob(workers, config.spares, servers=config.servers, **batch)
    click.echo(batch_script(job, command, config.train_dir, mpirun_args), nl=False)
    if job.asks_for_gpus and not (config.enable_gpu or config.gpu_master):
        _LOG.warning("the script asks Slurm for GPUs that no rank uses: add --enable-gpu after train, or leave them out")
    return 0
