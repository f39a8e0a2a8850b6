"""`psnode bench`: a command for every part of psnode that can be measured. Modules are imported when a command is called."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from psnode.cli.debugging import debuggable
from psnode.config import Config


def _codecs(text: str) -> Callable[[Any], Any]:
    """The repeatable option --codec, whose values become specs without files."""

    def loaded(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        from psnode.config.extensions import load_codec

        return tuple(load_codec(value) for value in values)

    return click.option("--codec", "specs", multiple=True, metavar="SPEC", callback=loaded, help=text)


@click.group(short_help="Measure.")
def bench() -> None:
    """Measure a part of psnode on this machine."""


@bench.command(name="transport", short_help="How fast the master takes gradients in.")
@click.option("--groups", type=click.IntRange(1), default=11, show_default=True, help="Groups a step.")
@click.option("--group-bytes", type=click.IntRange(4), default=4_000_000, show_default=True, help="Size of each.")
@click.option("--rounds", type=click.IntRange(2), default=12, show_default=True, help="How often everything is measured.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_transport(**options: Any) -> int:
    """Dense ingest at the master against MPI's own bandwidth in the same run, over shared memory and TCP on this host."""
    from psnode.bench.transport import main as measure

    return measure(**options)


@bench.command(name="rounds", short_help="How long deciding over a gradient frame takes.")
@click.option(
    "-n", "--workers", type=click.IntRange(1), multiple=True, metavar="P", help="Repeat for more; default: 4, 64, 256 and 1024."
)
@click.option(
    "--consistency", "rules", multiple=True, type=click.Choice(["bsp", "kofn", "ssp", "asp"]), help="Repeat; default: all."
)
@click.option("--groups", type=click.IntRange(1), default=4, show_default=True, help="Groups a step.")
@click.option("--frames", type=click.IntRange(1), default=50_000, show_default=True, help="Frames that are offered in a repeat.")
@click.option("--repeats", type=click.IntRange(1), default=5, show_default=True, help="The median of so many, and their spread.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_rounds(**options: Any) -> int:
    """Time that the master's rounds take for each gradient frame, by rule and number of workers, without any bytes in it."""
    from psnode.bench.rounds import main as measure

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
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Directory for the runs; those there are kept.")
@click.option("--local/--mpi", default=False, help="Master and workers in one process, or a rank each.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_convergence(**options: Any) -> int:
    """Train one model with several schemes for the same number of steps and evaluate the results."""
    from psnode.bench.convergence import main as measure

    return measure(**options)


@bench.command(name="liars", short_help="Accuracy with a worker whose gradients are lies.")
@click.option("--network", default="FC", show_default=True, help="As of train.")
@click.option("--scheme", default="dense", show_default=True, help="As of train.")
@click.option("-n", "--workers", type=click.IntRange(2), default=4, show_default=True, help="Workers; the last one lies.")
@click.option("--steps", type=click.IntRange(1), default=400, show_default=True, help="Steps of each run.")
@click.option(
    "--defence", "defences", multiple=True, type=click.Choice(["mean", "cap", "clip", "clip+cap"]), help="Repeat; default: all."
)
@click.option(
    "--lie", "lies", multiple=True, type=click.Choice(["flip", "x100", "x-10", "noise", "replay"]), help="Repeat; default: all."
)
@click.option("--seed", "seeds", type=click.IntRange(0), multiple=True, default=(1, 2, 3), show_default=True, help="Repeat.")
@click.option("--output", type=click.Path(path_type=Path), required=True, help="Directory for the runs; those there are kept.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@click.option("--markdown", "markdown_file", type=click.Path(path_type=Path), help="Also write the table to this page.")
@debuggable
def bench_liars(**options: Any) -> int:
    """Train on the digits with one liar among the workers, for every kind of lie and defence, and evaluate the results."""
    from psnode.bench.liars import main as measure

    return measure(**options)


@bench.command(name="memory", short_help="What the master's memory grows with.")
@click.option(
    "--network", "networks", multiple=True, default=("torchvision:resnet18",), show_default=True, help="Repeat for more."
)
@click.option("--scheme", "schemes", multiple=True, default=("dense", "qsgd"), show_default=True, help="Repeat for more.")
@click.option(
    "-n", "--workers", type=click.IntRange(1), multiple=True, default=(1, 2, 4), show_default=True, help="Repeat for more."
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_memory(**options: Any) -> int:
    """Peak memory of the master over networks, schemes and numbers of workers."""
    from psnode.bench.memory import main as measure

    return measure(**options)


@bench.command(name="peers", short_help="Against PyTorch DDP, on emulated hosts; needs root and a checkout.")
@click.option("--network", default="torchvision:resnet18", show_default=True, help="As of train.")
@click.option("--dataset", default="synthetic", show_default=True, help="As of train.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="As of train.")
@click.option("--workers", type=click.IntRange(1), default=4, show_default=True, help="Hosts that compute.")
@click.option("--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Examples a worker takes in a step.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Of all of them.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the first round; then the next.")
@click.option("--rate", "rates", multiple=True, default=("100mbit",), show_default=True, help="Of the links, or none; repeat.")
@click.option("--scheme", "schemes", multiple=True, metavar="'NAME [FLAG VALUE]...'", help="Of psnode; repeat.")
@click.option("--ddp", multiple=True, metavar="fp32|fp16|bf16|powersgd[:k=v,...]|psnode:CODEC", help="DDP's hook; repeat.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="How often everything is measured.")
@click.option("--steps", type=click.IntRange(2), default=30, show_default=True, help="Steps to measure.")
@click.option("--warmup", type=click.IntRange(0), default=5, show_default=True, help="Steps before them.")
@click.option("--evaluate-every", type=click.IntRange(0), default=0, show_default=True, help="Steps between accuracies; 0: none.")
@click.option("--target", type=click.FloatRange(0, 1), help="Test accuracy to reach.")
@click.option("--run-seconds", type=click.FloatRange(1), default=900.0, show_default=True, help="The longest a run may take.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
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
    from psnode.bench import peers

    return peers.main(schemes=schemes or peers.SCHEMES, ddp=ddp or peers.PEERS, **options)


@bench.command(name="codecs", short_help="Speed, bits and error of every codec.")
@_codecs("Measure this one; repeat; default: all.")
@click.option("--size", type=click.IntRange(1024), default=2**24, show_default=True, help="Values of the two distributions.")
@click.option("--gradient", type=click.Path(path_type=Path), metavar="FILE", help="A file of bench record, measured too.")
@click.option("--seconds", type=click.FloatRange(0), default=0.5, show_default=True, help="What each figure may take.")
@click.option("--copies", type=click.IntRange(0), metavar="MIB", help="Copies that are gone round; default: 4 last-level caches.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw rate and distortion, as PNG and as SVG.")
@debuggable
def bench_codecs(**options: Any) -> int:
    """Every codec on N(0,1), Student-t(3) and a recorded gradient, on one core, against memory and theory."""
    from psnode.bench.codecs import main as measure

    return measure(**options)


@bench.command(name="fidelity", short_help="Every codec's error against polar's at as many bits.")
@_codecs("Measure this one and polar; repeat; default: all.")
@click.option("--size", type=click.IntRange(1024), default=2**22, show_default=True, help="Values of N(0,1).")
@click.option("--gradient", type=click.Path(path_type=Path), metavar="FILE", help="A file of bench record, measured too.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE.png", help="Draw what was found on N(0,1).")
@debuggable
def bench_fidelity(**options: Any) -> int:
    """Bits and squared error of every codec on N(0,1) and a recorded gradient, and polar's error at as many bits."""
    from psnode.bench.fidelity import main as measure

    return measure(**options)


@bench.command(name="scales", short_help="What one scale for all tensors costs.")
@click.option("--gradient", type=click.Path(path_type=Path), required=True, metavar="FILE", help="A file of bench record.")
@_codecs("Measure this one; repeat; default: those with one scale.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_scales(gradient: Path, specs: tuple[str, ...], json_file: Path | None) -> int:
    """Squared error of a recorded gradient, its tensors fused into one array and one by one."""
    from psnode.bench.scales import main as measure

    return measure(gradient, specs, json_file)


@bench.command(name="sketchml", short_help="Bytes of sparse gradients against SketchML's own coding.")
@click.option(
    "--codec", "specs", multiple=True, metavar="SPEC", help="Measure this one; repeat; default: some forms of sketchml."
)
@click.option(
    "--size", type=click.IntRange(1024), default=2**20, show_default=True, help="Coordinates, Student-t(3) at random places."
)
@click.option("--density", type=click.FloatRange(0.0001, 1), default=0.01, show_default=True, help="The share that is not 0.")
@click.option(
    "--gradient", type=click.Path(path_type=Path), metavar="FILE", help="A file of bench record: its largest values too."
)
@debuggable
def bench_sketchml(**options: Any) -> int:
    """Bits of keys, bytes and error of sparse gradients, against the coding that SketchML was published with."""
    from psnode.bench.sparse_sizes import main as measure

    return measure(**options)


@bench.command(name="polar-design", short_help="Make the designs of the polar codec anew.")
@click.option("--rate", "rates", type=float, multiple=True, metavar="R", help="This rate in bits; repeat; default: all.")
@click.option(
    "--log-length",
    "log_lengths",
    type=click.IntRange(6, 18),
    multiple=True,
    metavar="N",
    help="Blocks of 2^N; repeat; default: all.",
)
@click.option("--blocks", type=click.IntRange(32), help="Blocks to simulate; default: 2^25 values of them, at most 8192.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Of the simulation.")
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="Where to: rate-R.npz.")
@debuggable
def bench_polar_design(**options: Any) -> int:
    """Simulate the test channel, and say which bits of a block are worth sending at which rate."""
    from psnode.bench.polar_design import main as design

    return design(**options)


@bench.command(name="polar-gap", short_help="How far the polar codec is from the rate-distortion function.")
@click.option(
    "--rate", "rates", type=float, multiple=True, default=(1.0,), show_default=True, metavar="R", help="Bits; repeat for more."
)
@click.option(
    "--log-length",
    "log_lengths",
    type=click.Choice((10, 12, 14, 16, 18)),
    multiple=True,
    default=(10, 12, 14, 16, 18),
    show_default=True,
    metavar="N",
    help="Blocks of 2^N; repeat for more.",
)
@click.option("--values", type=click.IntRange(1), default=1 << 23, show_default=True, help="How many Gaussian values.")
@click.option("--segment", "segments", type=click.IntRange(1), multiple=True, metavar="N", help="An array of N values; repeat.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Also write the result to this file.")
@debuggable
def bench_polar_gap(**options: Any) -> int:
    """Error, bits and speed on N(0,1), decoded by another process, against D = 4^-R."""
    from psnode.bench.polar_gap import main as measure

    return measure(**options)


@bench.command(name="polar-stages", short_help="Where the polar codec's time goes.")
@click.option(
    "--rate", type=click.Choice((0.5, 1.0, 1.5, 2.0, 3.0, 4.0)), default=1.0, show_default=True, metavar="R", help="Bits."
)
@click.option("--log-length", type=click.IntRange(6, 18), default=14, show_default=True, metavar="N", help="Blocks of 2^N.")
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="The fastest of so many counts.")
@debuggable
def bench_polar_stages(**options: Any) -> int:
    """Nanoseconds of every stage of encoding and decoding, for a row of 32 values."""
    from psnode.bench.polar_stages import main as measure

    return measure(**options)


@bench.command(name="record", short_help="Save a gradient for bench codecs.")
@click.option("--output", type=click.Path(path_type=Path), required=True, metavar="FILE", help="Where to: FILE.safetensors.")
@click.option("--steps", type=click.IntRange(0), default=10, show_default=True, help="Steps of training before it.")
@click.option("--task", help="As of train.")
@click.option("--task-option", multiple=True, metavar="KEY=VALUE", help="As of train.")
@click.option("--network", default="ResNet18", show_default=True, help="As of train.")
@click.option("--dataset", default="synthetic", show_default=True, help="As of train.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="As of train.")
@click.option("--download/--no-download", default=False, help="As of train.")
@click.option("--batch-size", type=click.IntRange(1), default=32, show_default=True, help="As of train.")
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="As of train.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="As of train.")
@debuggable
def bench_record(output: Path, steps: int, **options: Any) -> int:
    """Train a few steps on one process and save one gradient: a float32 tensor a parameter."""
    from psnode.bench.record import main as save

    return save(output, steps, Config(**options))
