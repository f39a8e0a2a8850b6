"""`psnode bench`: a command for every part of psnode that can be measured. Modules are imported when a command is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from psnode.cli import shared
from psnode.cli.bench_codecs import COMMANDS
from psnode.cli.bench_step import bench_step
from psnode.cli.debugging import debuggable
from psnode.config import Config

# commands that are studies now, run as `python -m studies.NAME` in a clone
MOVED = (
    "atomo", "checkpoint", "feedback", "fidelity", "liars", "loading", "memory", "polar-design", "polar-gap", "polar-stages",
    "rounds", "scales", "sketchml", "threads", "updates",
)  # fmt: skip
# options that are
MOVED_OPTIONS = {"--bounds": "python -m studies.gpu_bounds", "--compare": "python -m studies.rows or studies.widths"}


@click.group(short_help="Measure.")
def bench() -> None:
    """Measure a part of psnode on this machine."""


@bench.command(name="transport", short_help="How fast the master takes gradients in.")
@click.option("--groups", type=click.IntRange(1), default=11, show_default=True, help="Groups a step.")
@click.option("--group-bytes", type=click.IntRange(4), default=4_000_000, show_default=True, help="Size of each.")
@click.option("--rounds", type=click.IntRange(2), default=12, show_default=True, help="How often everything is measured.")
@shared.json_file
@debuggable
def bench_transport(**options: Any) -> int:
    """Dense ingest at the master against MPI's own bandwidth in the same run, over shared memory and TCP on this host."""
    from psnode.bench.transport import main as measure

    return measure(**options)


@bench.command(name="convergence", short_help="Accuracy of several schemes after the same steps.")
@click.option(
    "--run", "runs", multiple=True, required=True, metavar="'SCHEME [FLAGS]'", help="A scheme, and flags of its own; repeat."
)
@click.option("--common", default="", metavar="FLAGS", help="Flags of train for all runs, as one text.")
@click.option("-n", "--workers", type=click.IntRange(1), default=4, show_default=True, help="Workers of each job.")
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1,), show_default=True, help="Repeat for more.")
@click.option("--lr", "lrs", type=click.FloatRange(0, min_open=True), multiple=True, help="Report the best of these; repeat.")
@click.option("--screen/--no-screen", default=False, help="Compare the rates on the first seed alone; others run at the best.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="So many runs at a time.")
@shared.output
@click.option("--local/--mpi", default=False, help="Master and workers in one process, or a rank each.")
@shared.json_file
@debuggable
def bench_convergence(**options: Any) -> int:
    """Train one model with several schemes for the same number of steps and evaluate the results."""
    from psnode.bench.convergence import main as measure

    return measure(**options)


@bench.command(name="peers", short_help="Against PyTorch DDP, on emulated hosts; needs root and a checkout.")
@shared.network
@shared.dataset
@shared.data_dir
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="Hosts that compute.")
@shared.batch_size
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Of all of them.")
@shared.seed
@click.option(
    "--rate",
    "rates",
    multiple=True,
    default=("100mbit",),
    show_default=True,
    help="Of the links, or none; or RATE,ROUND_TRIP[,wireguard]; repeat.",
)
@click.option("--scheme", "schemes", multiple=True, metavar="'NAME [FLAG VALUE]...'", help="Of psnode; repeat.")
@click.option("--ddp", multiple=True, metavar="fp32|fp16|bf16|powersgd[:k=v,...]|psnode:CODEC", help="DDP's hook; repeat.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="How often everything is measured.")
@click.option("--steps", type=click.IntRange(2), default=30, show_default=True, help="Steps to measure.")
@click.option("--warmup", type=click.IntRange(0), default=5, show_default=True, help="Steps before them.")
@click.option("--evaluate-every", type=click.IntRange(0), default=0, show_default=True, help="Steps between accuracies; 0: none.")
@click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy to reach.")
@click.option("--run-seconds", type=click.FloatRange(1), default=900.0, show_default=True, help="The longest a run may take.")
@shared.json_file
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw accuracy over time and bytes into this file.")
@click.option("--alone/--no-alone", default=False, help="Also measure each scheme's exchange without any training.")
@click.option("--from", "earlier", type=click.Path(path_type=Path), multiple=True, metavar="FILE", help="Put results together.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the tables to this page.")
@click.option("--keep", type=click.Path(path_type=Path), help="Leave what the runs wrote in this empty directory.")
@debuggable
def bench_peers(schemes: tuple[str, ...], ddp: tuple[str, ...], **options: Any) -> int:
    """psnode's schemes against PyTorch DDP over gloo: step time, bytes on the wire, accuracy; on emulated hosts.

    Needs root, and a checkout of psnode: hosts are emulated by its scripts/netlab.sh.
    """
    from psnode.bench.contest import comparison

    return comparison.main(schemes=schemes or comparison.SCHEMES, ddp=ddp or comparison.PEERS, **options)


@bench.command(name="hooks", short_help="Accuracy under DDP's communication hooks.")
@shared.network
@shared.dataset
@shared.data_dir
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="Processes on this host.")
@shared.batch_size
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="At the beginning.")
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1,), show_default=True, help="Repeat for more.")
@click.option("--ddp", "hooks", multiple=True, metavar="fp32|fp16|bf16|powersgd[:k=v,...]|psnode:CODEC", help="Repeat for more.")
@click.option("--steps", type=click.IntRange(1), default=2400, show_default=True, help="Of each run.")
@shared.json_file
@debuggable
def bench_hooks(hooks: tuple[str, ...], seeds: tuple[int, ...], **options: Any) -> int:
    """Test accuracy of DDP under several hooks after the same steps, processes over the loopback; the first hook is what others
    are compared with.
    """
    from psnode.bench import hooks as measured

    return measured.main(hooks or measured.HOOKS, seeds, **options)


@bench.command(name="record", short_help="Save a gradient for bench codecs.")
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to: FILE.safetensors.")
@click.option("--steps", type=click.IntRange(0), default=10, show_default=True, help="Steps of training before it.")
@click.option("--task", help="As of train.")
@click.option("--task-option", multiple=True, metavar="KEY=VALUE", help="As of train.")
@click.option("--network", default="ResNet18", show_default=True, help="As of train.")
@shared.dataset
@shared.data_dir
@click.option("--download/--no-download", default=False, help="As of train.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="As of train.")
@shared.lr
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="As of train.")
@debuggable
def bench_record(output: Path, steps: int, **options: Any) -> int:
    """Train a few steps on one process and save one gradient: a float32 tensor a parameter."""
    from psnode.bench.record import main as save

    return save(output, steps, Config(**options))


for command in (*COMMANDS, bench_step):
    bench.add_command(command)
