"""Commands of `psnode bench` that measure codecs on their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from psnode.cli import shared
from psnode.cli.debugging import debuggable
from psnode.errors import ConfigurationError


def _codecs(text: str) -> Callable[[Any], Any]:
    """Return the repeatable option --codec, whose values become specs without files."""

    def loaded(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        from psnode.config.extensions import load_codec

        return tuple(load_codec(value) for value in values)

    return click.option("--codec", "specs", multiple=True, metavar="SPEC", callback=loaded, help=text)


def _without(options: dict[str, Any], flags: dict[str, str]) -> dict[str, Any]:
    """Return the options except those with `flags`, which --compare does not support. Raises ConfigurationError if one of them is
    given."""
    if given := [flag for name, flag in flags.items() if options[name] is not None]:
        raise ConfigurationError(f"--compare measures speeds on N(0,1) only: leave out {given[0]}")
    return {name: value for name, value in options.items() if name not in flags}


def _on_device(device: str, options: dict[str, Any]) -> int:
    """Measure as `bench gpu` does. Raises ConfigurationError for a device other than CUDA, and for options that do not apply."""
    from psnode.bench.gpu import REPEATS
    from psnode.bench.gpu import main as measure

    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
        raise ConfigurationError(f"--device {device}: kernels are for CUDA: name cuda or cuda:1")
    context, known = click.get_current_context(), ("device", "specs", "size", "json_file")
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in known and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigurationError(f"--device measures speeds and bytes on N(0,1) only: leave out {parameter.opts[0]}")
    return measure(options["specs"], options["size"], REPEATS, int(number or 0), options["json_file"])


@click.command(name="codecs", short_help="Speed, bits and error of every codec.")
@_codecs("Codec to measure; repeatable; default: all.")
@click.option(
    "--size", type=click.IntRange(1024), default=2**24, show_default=True, help="Values drawn from each of the two distributions."
)
@shared.gradient
@click.option("--seconds", type=click.FloatRange(0), default=0.5, show_default=True, help="Time per figure.")
@shared.copies
@shared.json_file
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Plot rate and distortion, as PNG and as SVG.")
@shared.earlier
@click.option(
    "--compare",
    type=click.Choice(["rows", "widths"]),
    help="Measure only speeds, in turn: generated kernels next to hand-written ones, or kernels by processor and vector width.",
)
@click.option("--device", metavar="cuda[:N]", help="Measure on this device instead, next to a copy on it, like bench gpu.")
@debuggable
def bench_codecs(compare: str | None, device: str | None, **options: Any) -> int:
    """Measure every codec on N(0,1), Student-t(3) and a recorded gradient, on one core, against memory bandwidth and theory."""
    if device is not None:
        return _on_device(device, options)
    if compare is not None:
        from psnode.bench import rows, widths

        compared = {"rows": rows.main, "widths": widths.main}[compare]
        return compared(**_without(options, {"gradient": "--gradient", "plot_file": "--plot", "earlier": "--from"}))
    from psnode.bench.codecs import main as measure

    return measure(**options)


@click.command(name="feedback", short_help="Time of error feedback in training.")
@_codecs("Codec to measure; repeatable; default: those that training fuses, and topk.")
@click.option(
    "--cached", type=click.IntRange(1024), default=2**18, show_default=True, help="Values per array that fits into the cache."
)
@click.option("--size", type=click.IntRange(1024), default=2**24, show_default=True, help="Values per array that does not.")
@click.option("--repeats", type=click.IntRange(1), default=9, show_default=True, help="Repetitions, in turn; the best counts.")
@click.option("--seconds", type=click.FloatRange(0), default=0.05, show_default=True, help="Time per figure and repetition.")
@shared.copies
@shared.json_file
@debuggable
def bench_feedback(**options: Any) -> int:
    """Time a step of error feedback per codec as a worker's sender performs it: add the gradient, encode, keep the residual.

    Measures arrays that fit into the cache and arrays that do not, on one core, next to a copy and a read of as much memory.
    """
    from psnode.bench.feedback import main as measure

    return measure(**options)


@click.command(name="fidelity", short_help="Error of every codec against polar's at the same rate.")
@_codecs("Codec to compare with polar; repeatable; default: all.")
@click.option("--size", type=click.IntRange(1024), default=2**22, show_default=True, help="Values drawn from N(0,1).")
@shared.gradient
@shared.json_file
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), metavar="FILE.png", help="Plot the results on N(0,1).")
@shared.earlier
@debuggable
def bench_fidelity(**options: Any) -> int:
    """Measure the bits and the squared error of every codec on N(0,1) and a recorded gradient, and polar's error at the same
    rate."""
    from psnode.bench.fidelity import main as measure

    return measure(**options)


@click.command(name="scales", short_help="Cost of one scale for all tensors.")
@click.option(
    "--gradient", type=click.Path(path_type=Path), required=True, metavar="FILE", help="A file written by bench record."
)
@_codecs("Codec to measure; repeatable; default: those with one scale.")
@shared.json_file
@debuggable
def bench_scales(gradient: Path, specs: tuple[str, ...], json_file: Path | None) -> int:
    """Compare the squared error of a recorded gradient coded as one fused array with that of its tensors coded one by one."""
    from psnode.bench.scales import main as measure

    return measure(gradient, specs, json_file)


@click.command(name="sketchml", short_help="Bytes of sparse gradients, against SketchML's own coding.")
@click.option(
    "--codec", "specs", multiple=True, metavar="SPEC", help="Codec to measure; repeatable; default: some forms of sketchml."
)
@click.option(
    "--size",
    type=click.IntRange(1024),
    default=2**20,
    show_default=True,
    help="Coordinates; the nonzero ones are Student-t(3) at random places.",
)
@click.option(
    "--density", type=click.FloatRange(0.0001, 1), default=0.01, show_default=True, help="Fraction of nonzero coordinates."
)
@click.option(
    "--gradient",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Also measure the largest values of a file written by bench record.",
)
@debuggable
def bench_sketchml(**options: Any) -> int:
    """Measure the bits of the keys, the bytes and the error of sparse gradients, against the coding that SketchML was published
    with."""
    from psnode.bench.sparse_sizes import main as measure

    return measure(**options)


@click.command(name="polar-design", short_help="Recompute the designs of the polar codec.")
@click.option("--rate", "rates", type=float, multiple=True, metavar="R", help="Rate in bits; repeatable; default: all.")
@click.option(
    "--log-length",
    "log_lengths",
    type=click.IntRange(6, 18),
    multiple=True,
    metavar="N",
    help="Block length 2^N; repeatable; default: all.",
)
@click.option("--blocks", type=click.IntRange(32), help="Blocks to simulate; default: 2^25 values of them, at most 8192.")
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Seed of the simulation.")
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, metavar="FOLDER", help="Output directory, for rate-R.npz."
)
@debuggable
def bench_polar_design(**options: Any) -> int:
    """Simulate the test channel and determine which bits of a block are worth sending at which rate."""
    from psnode.bench.polar_design import main as design

    return design(**options)


@click.command(name="polar-gap", short_help="Distance of the polar codec from the rate-distortion function.")
@click.option(
    "--rate", "rates", type=float, multiple=True, default=(1.0,), show_default=True, metavar="R", help="Rate in bits; repeatable."
)
@click.option(
    "--log-length",
    "log_lengths",
    type=click.Choice((10, 12, 14, 16, 18)),
    multiple=True,
    default=(10, 12, 14, 16, 18),
    show_default=True,
    metavar="N",
    help="Block length 2^N; repeatable.",
)
@click.option("--values", type=click.IntRange(1), default=1 << 23, show_default=True, help="Number of Gaussian values.")
@click.option(
    "--segment", "segments", type=click.IntRange(1), multiple=True, metavar="N", help="Also an array of N values; repeatable."
)
@shared.json_file
@debuggable
def bench_polar_gap(**options: Any) -> int:
    """Measure error, bits and speed on N(0,1), decoded by another process, against D = 4^-R."""
    from psnode.bench.polar_gap import main as measure

    return measure(**options)


@click.command(name="polar-stages", short_help="Time of each stage of the polar codec.")
@click.option(
    "--rate", type=click.Choice((0.5, 1.0, 1.5, 2.0, 3.0, 4.0)), default=1.0, show_default=True, metavar="R", help="Bits."
)
@click.option("--log-length", type=click.IntRange(6, 18), default=14, show_default=True, metavar="N", help="Block length 2^N.")
@click.option("--repeats", type=click.IntRange(1), default=20, show_default=True, help="Repetitions; the fastest counts.")
@debuggable
def bench_polar_stages(**options: Any) -> int:
    """Measure the nanoseconds of every stage of encoding and decoding, for a row of 32 values."""
    from psnode.bench.polar_stages import main as measure

    return measure(**options)


@click.command(name="atomo", short_help="Cost of cheaper bases in spectral ATOMO.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(["ResNet-18", "GPT-2, 124 M"]),
    help="Model whose gradients are coded; repeatable; default: both.",
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Training steps before the gradient.")
@click.option("--rank", type=click.IntRange(1), default=3, show_default=True, help="Expected number of terms.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="Repetitions; the fastest counts, with --device the median.",
)
@click.option("--device", metavar="cuda[:N]", help="Time on this device instead, next to the time of a step on it.")
@shared.json_file
@debuggable
def bench_atomo(device: str | None, steps: int, **options: Any) -> int:
    """Measure the variance over the optimum's and the seconds of coding per step, by kind of tensor,
    on gradients of real models."""
    if device is not None:
        from psnode.bench.atomo_device import main as on_device

        if click.get_current_context().get_parameter_source("steps") is ParameterSource.COMMANDLINE:
            raise ConfigurationError("--device codes a gradient before any training: leave out --steps")
        return on_device(device=device, **options)
    from psnode.bench.atomo import main as measure

    return measure(steps=steps, **options)


@click.command(name="gpu", short_help="Speed and bytes of codecs on a CUDA device.")
@_codecs("Codec to measure; repeatable; default: all that have a formula.")
@click.option("--size", type=click.IntRange(512), default=2**26, show_default=True, help="Number of values, a multiple of 2560.")
@click.option("--repeats", type=click.IntRange(3), default=15, show_default=True, help="Repetitions; the median counts.")
@click.option("--device", type=click.IntRange(0), default=0, show_default=True, help="Index of the CUDA device.")
@click.option(
    "--bounds", is_flag=True, help="Measure nothing, but print registers, instructions and the bound they imply; needs no GPU."
)
@shared.json_file
@debuggable
def bench_gpu(bounds: bool, **options: Any) -> int:
    """Measure the GB/s of codecs on a CUDA device, next to a copy on it in the same run, and check that they give the processor's
    bytes."""
    if bounds:
        from psnode.bench.gpu_bounds import main as bound

        return bound(options["specs"], options["json_file"])
    from psnode.bench.gpu import main as measure

    return measure(**options)


COMMANDS = (
    bench_atomo,
    bench_codecs,
    bench_feedback,
    bench_fidelity,
    bench_gpu,
    bench_scales,
    bench_sketchml,
    bench_polar_design,
    bench_polar_gap,
    bench_polar_stages,
)
