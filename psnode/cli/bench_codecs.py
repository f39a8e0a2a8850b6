"""Commands of `psnode bench` about codecs by themselves."""

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
    """The repeatable option --codec, whose values become specs without files."""

    def loaded(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        from psnode.config.extensions import load_codec

        return tuple(load_codec(value) for value in values)

    return click.option("--codec", "specs", multiple=True, metavar="SPEC", callback=loaded, help=text)


def _on_device(device: str, options: dict[str, Any]) -> int:
    """Measure as bench gpu does. ConfigurationError for another device, and for options that this does not know."""
    from psnode.bench.gpu import REPEATS
    from psnode.bench.gpu import main as measure

    kind, _, number = device.partition(":")
    if kind != "cuda" or not (number.isdecimal() or device == "cuda"):
        raise ConfigurationError(f"--device {device}: kernels are for CUDA: name cuda or cuda:1")
    context, known = click.get_current_context(), ("device", "specs", "size", "json_file")
    for parameter in context.command.params:
        name = str(parameter.name)
        if name not in known and context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise ConfigurationError(f"--device measures speeds and bytes on N(0,1) alone: leave out {parameter.opts[0]}")
    return measure(options["specs"], options["size"], REPEATS, int(number or 0), options["json_file"])


@click.command(name="codecs", short_help="Speed, bits and error of every codec.")
@_codecs("Measure this one; repeat; default: all.")
@click.option("--size", type=click.IntRange(1024), default=2**24, show_default=True, help="Values of the two distributions.")
@shared.gradient
@click.option("--seconds", type=click.FloatRange(0), default=0.5, show_default=True, help="What each figure may take.")
@shared.copies
@shared.json_file
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Draw rate and distortion, as PNG and as SVG.")
@shared.earlier
@click.option("--device", metavar="cuda[:N]", help="On this device instead, beside a copy there, as bench gpu.")
@debuggable
def bench_codecs(device: str | None, **options: Any) -> int:
    """Every codec on N(0,1), Student-t(3) and a recorded gradient, on one core, against memory and theory."""
    if device is not None:
        return _on_device(device, options)
    from psnode.bench.codecs import main as measure

    return measure(**options)


@click.command(name="polar-design", short_help="Make the designs of the polar codec anew.")
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


@click.command(name="polar-gap", short_help="How far the polar codec is from the rate-distortion function.")
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
@shared.json_file
@debuggable
def bench_polar_gap(**options: Any) -> int:
    """Error, bits and speed on N(0,1), decoded by another process, against D = 4^-R."""
    from psnode.bench.polar_gap import main as measure

    return measure(**options)


@click.command(name="polar-stages", short_help="Where the polar codec's time goes.")
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


@click.command(name="atomo", short_help="What cheaper bases cost spectral ATOMO.")
@click.option(
    "--model",
    "models",
    multiple=True,
    type=click.Choice(["ResNet-18", "GPT-2, 124 M"]),
    help="Its gradients; repeat; default: both.",
)
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps of training before the gradient.")
@click.option("--rank", type=click.IntRange(1), default=3, show_default=True, help="Expected number of terms.")
@click.option(
    "--repeats",
    type=click.IntRange(1),
    default=2,
    show_default=True,
    help="The fastest, with --device the median, of so many codings.",
)
@click.option("--device", metavar="cuda[:N]", help="Milliseconds on this device instead, beside those of a step there.")
@shared.json_file
@debuggable
def bench_atomo(device: str | None, steps: int, **options: Any) -> int:
    """Variance over the optimum's, and seconds of coding a step, by kind of tensor, of gradients of real models."""
    if device is not None:
        from psnode.bench.atomo_device import main as on_device

        if click.get_current_context().get_parameter_source("steps") is ParameterSource.COMMANDLINE:
            raise ConfigurationError("--device codes a gradient before any training: leave out --steps")
        return on_device(device=device, **options)
    from psnode.bench.atomo import main as measure

    return measure(steps=steps, **options)


@click.command(name="gpu", short_help="Speed and bytes of codecs on a CUDA device.")
@_codecs("Measure this one; repeat; default: all that have a formula.")
@click.option("--size", type=click.IntRange(512), default=2**26, show_default=True, help="Values, in multiples of 2560.")
@click.option(
    "--repeats", type=click.IntRange(3), default=15, show_default=True, help="Times of which each figure is the median."
)
@click.option("--device", type=click.IntRange(0), default=0, show_default=True, help="The number of the CUDA device.")
@click.option("--bounds", is_flag=True, help="Measure nothing: registers, instructions and the bound they imply. Needs no GPU.")
@shared.json_file
@debuggable
def bench_gpu(bounds: bool, **options: Any) -> int:
    """GB/s of codecs on a CUDA device, beside a copy there in the same run, and whether they give the processor's bytes."""
    if bounds:
        from psnode.bench.gpu_bounds import main as bound

        return bound(options["specs"], options["json_file"])
    from psnode.bench.gpu import main as measure

    return measure(**options)


COMMANDS = (
    bench_atomo,
    bench_codecs,
    bench_gpu,
    bench_polar_design,
    bench_polar_gap,
    bench_polar_stages,
)
