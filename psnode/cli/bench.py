"""The commands of `psnode bench`, which measure psnode and PyTorch's DDP. They import the modules that measure when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from psnode.cli import shared
from psnode.cli.benchmarks.bench_codecs import COMMANDS
from psnode.cli.benchmarks.bench_step import bench_step
from psnode.cli.debugging import debuggable
from psnode.config import Config

# former commands that have become studies, run as `python -m studies.NAME` in a clone
MOVED = (
    "atomo", "checkpoint", "feedback", "fidelity", "liars", "loading", "memory", "polar-design", "polar-gap", "polar-stages",
    "rounds", "scales", "sketchml", "threads", "updates",
)  # fmt: skip
# former options that have become studies
MOVED_OPTIONS = {"--bounds": "python -m studies.gpu_bounds", "--compare": "python -m studies.rows or studies.widths"}


@click.group(short_help="Measure.")
def bench() -> None:
    """Measure a part of psnode on this machine."""


@bench.command(name="transport", short_help="Rate at which the master receives gradients.")
@click.option("--groups", type=click.IntRange(1), default=11, show_default=True, help="Groups per step.")
@click.option("--group-bytes", type=click.IntRange(4), default=4_000_000, show_default=True, help="Size of each group.")
@click.option("--rounds", type=click.IntRange(2), default=12, show_default=True, help="Repetitions of every measurement.")
@shared.json_file
@debuggable
def bench_transport(**options: Any) -> int:
    """Compare dense ingest at the master with MPI's own bandwidth in the same run, over shared
    memory and over TCP on this host."""
    from psnode.bench.ingest_rate import main as measure

    return measure(**options)


@bench.command(name="convergence", short_help="Accuracy of several schemes after equal numbers of steps.")
@click.option(
    "--run", "runs", multiple=True, required=True, metavar="'[NAME=]SCHEME [FLAGS]'",
    help="A scheme, or DDP with a hook (ddp:fp32, ddp:fp16, ddp:bf16, ddp:powersgd:rank=2), and flags of its own, or "
    "--codec SPEC alone; repeatable. NAME stands in tables, plots and names of directories.",
)  # fmt: skip
@click.option("--common", default="", metavar="FLAGS", help="Flags of `psnode train` for all runs, as one argument.")
@click.option("-n", "--workers", type=click.IntRange(1), default=4, show_default=True, help="Workers per job.")
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1,), show_default=True, help="Seed; repeatable.")
@click.option(
    "--lr",
    "lrs",
    type=click.FloatRange(0, min_open=True),
    multiple=True,
    help="Learning rate to try; repeatable; the best is reported.",
)
@click.option(
    "--screen/--no-screen",
    default=False,
    help="Compare the learning rates on the first seed only; the other seeds run at the best.",
)
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Runs in parallel.")
@click.option(
    "--evaluate-every", type=click.IntRange(0), default=0, show_default=True, help="Steps between evaluations; 0: one at the end."
)
@click.option("--rate", metavar="RATE", help="Also estimate seconds on links of this rate, such as 100mbit or 1gbit.")
@shared.output
@click.option("--local/--mpi", default=False, help="Run master and workers in one process, or as one rank each.")
@shared.json_file
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), help="Write every evaluation of every seed to this file.")
@click.option("--latex", "latex_file", type=click.Path(path_type=Path), help="Write the table to this file, for booktabs.")
@click.option(
    "--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE.pdf|.png|.svg",
    help="Plot the evaluations over steps, bytes and, with --rate, seconds, and the Pareto front.",
)  # fmt: skip
@debuggable
def bench_convergence(**options: Any) -> int:
    """Train one model with several schemes for the same number of steps, and evaluate the results.

    If the same command is given again, it reads the finished runs and trains only the missing ones. The written files contain
    means and standard errors over the seeds.
    """
    from psnode.bench.convergence.equal_steps import main as measure

    return measure(**options)


@bench.command(name="peers", short_help="Comparison with PyTorch DDP on emulated hosts; needs root.")
@shared.network
@shared.dataset
@shared.data_dir
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="Hosts that compute gradients.")
@shared.batch_size
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Batch size of all hosts together."
)
@shared.seed
@click.option(
    "--rate",
    "rates",
    multiple=True,
    default=("100mbit",),
    show_default=True,
    help="Rate of the links, or none; or RATE,ROUND_TRIP[,wireguard]; repeatable.",
)
@click.option(
    "--scheme",
    "schemes",
    multiple=True,
    metavar="'NAME [FLAG VALUE]...'",
    help="A scheme of psnode, and flags of its own; repeatable.",
)
@click.option(
    "--ddp",
    multiple=True,
    metavar="fp32|fp16|bf16|powersgd[:k=v,...]|psnode:CODEC",
    help="Communication hook of DDP; repeatable.",
)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Repetitions of every measurement.")
@click.option("--steps", type=click.IntRange(2), default=30, show_default=True, help="Steps to measure.")
@click.option("--warmup", type=click.IntRange(0), default=5, show_default=True, help="Steps before the measured ones.")
@click.option(
    "--evaluate-every", type=click.IntRange(0), default=0, show_default=True, help="Steps between evaluations; 0: no evaluation."
)
@click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy to reach.")
@click.option("--run-seconds", type=click.FloatRange(1), default=900.0, show_default=True, help="Time limit of a run.")
@shared.json_file
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Plot accuracy over time and over bytes to this file.")
@click.option("--alone/--no-alone", default=False, help="Also measure the exchange of each scheme without training.")
@click.option(
    "--from", "earlier", type=click.Path(path_type=Path), multiple=True, metavar="FILE", help="Merge results of earlier runs."
)
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the tables to this page.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep the files of the runs in this empty directory.")
@debuggable
def bench_peers(schemes: tuple[str, ...], ddp: tuple[str, ...], **options: Any) -> int:
    """Compare psnode's schemes with PyTorch DDP over gloo on emulated hosts: step time, bytes on the wire, accuracy.

    Needs root rights, and the programs ip and tc (iproute2), with which the hosts are emulated.
    """
    from psnode.bench.contest import comparison

    return comparison.main(schemes=schemes or comparison.SCHEMES, ddp=ddp or comparison.PEERS, **options)


@bench.command(name="hooks", short_help="Accuracy under DDP's communication hooks.")
@shared.network
@shared.dataset
@shared.data_dir
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="Processes to start on this host.")
@shared.batch_size
@click.option(
    "--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Learning rate at the beginning."
)
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1,), show_default=True, help="Seed; repeatable.")
@click.option(
    "--ddp",
    "hooks",
    multiple=True,
    metavar="fp32|fp16|bf16|powersgd[:k=v,...]|psnode:CODEC",
    help="Communication hook; repeatable.",
)
@click.option("--steps", type=click.IntRange(1), default=2400, show_default=True, help="Steps per run.")
@shared.json_file
@debuggable
def bench_hooks(hooks: tuple[str, ...], seeds: tuple[int, ...], **options: Any) -> int:
    """Evaluate DDP under several hooks after equal numbers of steps, with processes on the loopback interface. The first hook is
    the reference for the others."""
    from psnode.bench import hook_accuracy as measured

    return measured.main(hooks or measured.HOOKS, seeds, **options)


@bench.command(name="record", short_help="Save a gradient for bench codecs.")
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Output file, FILE.safetensors.")
@click.option("--steps", type=click.IntRange(0), default=10, show_default=True, help="Training steps before the gradient.")
@click.option("--task", help="Same as `psnode train`.")
@click.option("--task-option", multiple=True, metavar="KEY=VALUE", help="Same as `psnode train`.")
@click.option("--network", default="ResNet18", show_default=True, help="Same as `psnode train`.")
@shared.dataset
@shared.data_dir
@click.option("--download/--no-download", default=False, help="Same as `psnode train`.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Same as `psnode train`.")
@shared.lr
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Same as `psnode train`.")
@debuggable
def bench_record(output: Path, steps: int, **options: Any) -> int:
    """Train for a few steps in one process and save one gradient: a float32 tensor per parameter."""
    from psnode.bench.record import main as save

    return save(output, steps, Config(**options))


for command in (*COMMANDS, bench_step):
    bench.add_command(command)
