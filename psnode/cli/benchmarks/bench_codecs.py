"""The commands of `psnode bench` that measure codecs without training."""

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
    """Return the repeatable option --codec with the help `text`.

    If a spec names a file, the file is loaded, and its name is removed from the spec.
    """

    def loaded(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        from psnode.codecs.registry import load_codec

        return tuple(load_codec(value) for value in values)

    return click.option("--codec", "specs", multiple=True, metavar="SPEC", callback=loaded, help=text)


def _on_device(device: str, options: dict[str, Any]) -> int:
    """Measure codecs on the CUDA device `device`, as `bench gpu` does, and return the exit code.

    Raises ConfigurationError for any other device, and for options that do not apply.
    """
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
@click.option("--device", metavar="cuda[:N]", help="Measure on this device instead, next to a copy on it, like bench gpu.")
@debuggable
def bench_codecs(device: str | None, **options: Any) -> int:
    """Measure every codec on N(0,1), Student-t(3) and a recorded gradient, on one core, next to memory bandwidth and theory."""
    if device is not None:
        return _on_device(device, options)
    from psnode.bench.codecs import main as measure

    return measure(**options)


@click.command(name="gpu", short_help="Speed and bytes of codecs on a CUDA device.")
@_codecs("Codec to measure; repeatable; default: all that have a formula.")
@click.option("--size", type=click.IntRange(512), default=2**26, show_default=True, help="Number of values, a multiple of 2560.")
@click.option("--repeats", type=click.IntRange(3), default=15, show_default=True, help="Repetitions; the median counts.")
@click.option("--device", type=click.IntRange(0), default=0, show_default=True, help="Index of the CUDA device.")
@shared.json_file
@debuggable
def bench_gpu(**options: Any) -> int:
    """Measure the GB/s of codecs on a CUDA device, and check that their payloads equal the processor's.

    A copy on the device is measured in the same run for comparison.
    """
    from psnode.bench.gpu import main as measure

    return measure(**options)


COMMANDS = (
    bench_codecs,
    bench_gpu,
)
