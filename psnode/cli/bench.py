"""`psnode bench`: one command for every part of psnode that can be measured. Each imports its modules when it is called."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import click

from psnode.cli import shared
from psnode.cli.bench_codecs import COMMANDS
from psnode.cli.bench_step import bench_step
from psnode.cli.debugging import debuggable
from psnode.config import Config


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
    from psnode.bench.transport import main as measure

    return measure(**options)


@bench.command(name="updates", short_help="Time that the master's optimizers take.")
@click.option(
    "--optimizer",
    "names",
    multiple=True,
    type=click.Choice(["sgd", "momentum", "adam", "adamw"]),
    help="Optimizer to measure; repeatable; default: all.",
)
@click.option("--size", type=click.IntRange(1), default=2**24, show_default=True, help="Parameters.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Repetitions, in turn; the best counts.")
@shared.json_file
@debuggable
def bench_updates(**options: Any) -> int:
    """Time a step of the master's optimizers on one core, next to torch's optimizers and to a copy of as many bytes."""
    from psnode.bench.updates import main as measure

    return measure(**options)


@bench.command(name="loading", short_help="Images per second, next to torch's DataLoader.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of an imagefolder data set; default: JPEGs generated for the benchmark.",
)
@click.option("--size", type=click.IntRange(1), default=224, show_default=True, help="Side of the resulting images.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="Images per batch.")
@click.option(
    "--data-workers",
    "processes",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Loader processes; repeatable; default: 0, 1 and 2.",
)
@click.option("--batches", type=click.IntRange(1), default=24, show_default=True, help="Batches to time.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions, in turn; the median counts.")
@shared.json_file
@debuggable
def bench_loading(**options: Any) -> int:
    """Measure the images per second of a worker's data, with and without processes, next to torch's
    DataLoader on the same files."""
    from psnode.bench.loading import main as measure

    return measure(**options)


@bench.command(name="rounds", short_help="Time that the master takes to decide on a gradient frame.")
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(1),
    multiple=True,
    metavar="P",
    help="Number of workers; repeatable; default: 4, 64, 256 and 1024.",
)
@click.option(
    "--consistency",
    "rules",
    multiple=True,
    type=click.Choice(["bsp", "kofn", "ssp", "asp"]),
    help="Consistency rule; repeatable; default: all.",
)
@click.option("--groups", type=click.IntRange(1), default=4, show_default=True, help="Groups per step.")
@click.option("--frames", type=click.IntRange(1), default=50_000, show_default=True, help="Frames per repetition.")
@click.option(
    "--repeats", type=click.IntRange(1), default=5, show_default=True, help="Repetitions; the median and the spread are reported."
)
@shared.json_file
@debuggable
def bench_rounds(**options: Any) -> int:
    """Measure the time that the master's rounds take per gradient frame, by rule and number of workers, without any payload."""
    from psnode.bench.rounds import main as measure

    return measure(**options)


@bench.command(name="convergence", short_help="Accuracy of several schemes after equal numbers of steps.")
@click.option(
    "--run", "runs", multiple=True, required=True, metavar="'SCHEME [FLAGS]'", help="A scheme, and flags of its own; repeatable."
)
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
@shared.output
@click.option("--local/--mpi", default=False, help="Run master and workers in one process, or as one rank each.")
@shared.json_file
@debuggable
def bench_convergence(**options: Any) -> int:
    """Train one model with several schemes for the same number of steps and evaluate the results."""
    from psnode.bench.convergence import main as measure

    return measure(**options)


@bench.command(name="liars", short_help="Accuracy with a worker that sends false gradients.")
@click.option("--network", default="FC", show_default=True, help="Same as `psnode train`.")
@click.option("--scheme", default="dense", show_default=True, help="Same as `psnode train`.")
@click.option(
    "-n", "--workers", type=click.IntRange(2), default=4, show_default=True, help="Workers; the last one sends false gradients."
)
@click.option("--steps", type=click.IntRange(1), default=400, show_default=True, help="Steps per run.")
@click.option(
    "--defence",
    "defences",
    multiple=True,
    type=click.Choice(["mean", "default", "cap", "clip", "clip+cap"]),
    help="Kind of false gradient; repeatable; default: all.",
)
@click.option(
    "--lie",
    "lies",
    multiple=True,
    type=click.Choice(["flip", "x100", "x-10", "noise", "replay", "3e38", "bit"]),
    help="Defence; repeatable; default: all.",
)
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1, 2, 3), show_default=True, help="Repeat.")
@shared.output
@shared.json_file
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the table to this page.")
@debuggable
def bench_liars(**options: Any) -> int:
    """Train on the digits with one lying worker, for every kind of lie and every defence, and evaluate the results."""
    from psnode.bench.liars import main as measure

    return measure(**options)


@bench.command(name="memory", short_help="Peak memory of both roles, next to the prediction.")
@click.option(
    "--network", "networks", multiple=True, default=("torchvision:resnet18",), show_default=True,
    help="A network of `psnode train`, or gpt2:124m or gpt2:355m; repeatable.",
)  # fmt: skip
@click.option("--scheme", "schemes", multiple=True, default=("dense", "qsgd"), show_default=True, help="Scheme; repeatable.")
@click.option(
    "-n",
    "--workers",
    type=click.IntRange(1),
    multiple=True,
    default=(1, 2, 4),
    show_default=True,
    help="Number of workers; repeatable.",
)
@click.option("--flags", default="", metavar="FLAGS", help="Flags of `psnode train` for all runs, as one argument.")
@shared.json_file
@debuggable
def bench_memory(**options: Any) -> int:
    """Measure the peak memory of the master and of a worker for each network, scheme and number of workers, next to the
    prediction of --dry-run."""
    from psnode.bench.memory import main as measure

    return measure(**options)


@bench.command(name="checkpoint", short_help="Cost of checkpoints in the training of a large model.")
@click.option("--model", type=click.Choice(["124m", "355m", "tiny"]), default="124m", show_default=True, help="Shapes of GPT-2.")
@click.option("-n", "--workers", type=click.IntRange(1), default=2, show_default=True, help="Workers in the job.")
@click.option("--every", type=click.IntRange(1), default=12, show_default=True, help="Steps between checkpoints.")
@click.option("--checkpoints", type=click.IntRange(1), default=3, show_default=True, help="Checkpoints to measure.")
@click.option("--train", "flags", default="", metavar="FLAGS", help="More flags of `psnode train`, as one argument.")
@click.option("--checkout", type=click.Path(path_type=Path, file_okay=False), help="Measure the psnode in this directory.")
@shared.json_file
@debuggable
def bench_checkpoint(flags: str, **options: Any) -> int:
    """Measure the pause, slowdown, bytes and memory of checkpoints while a transformer is trained
    with AdamW and top-k both ways."""
    from psnode.bench.checkpoint import main as measure

    return measure(flags=shlex.split(flags), **options)


@bench.command(name="peers", short_help="Comparison with PyTorch DDP on emulated hosts; needs root and a checkout.")
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

    Needs root and a checkout of psnode, whose scripts/netlab.sh emulates the hosts.
    """
    from psnode.bench import peers

    return peers.main(schemes=schemes or peers.SCHEMES, ddp=ddp or peers.PEERS, **options)


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
    from psnode.bench import hooks as measured

    return measured.main(hooks or measured.HOOKS, seeds, **options)


@bench.command(name="threads", short_help="Processor time per step and thread.")
@shared.network
@shared.dataset
@shared.data_dir
@click.option("-n", "--workers", type=click.IntRange(1), default=4, show_default=True, help="Workers in the job.")
@shared.batch_size
@shared.lr
@shared.seed
@click.option(
    "--scheme",
    metavar="'NAME [FLAG VALUE]...'",
    help="A scheme, and flags of `psnode train`.  [default: top-k of .5 % both ways]",
)
@click.option("--steps", type=click.IntRange(2), default=40, show_default=True, help="Steps to measure.")
@click.option("--warmup", type=click.IntRange(1), default=10, show_default=True, help="Steps before the measured ones.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions of every measurement.")
@shared.json_file
@debuggable
def bench_threads(scheme: str | None, **options: Any) -> int:
    """Measure the milliseconds of processor time per step in every thread of every rank of a job on this machine.

    The ranks use shared memory and alternate with the same processes without communication. Linux only.
    """
    from psnode.bench import threads

    return threads.main(scheme=scheme or threads.SCHEME, **options)


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
