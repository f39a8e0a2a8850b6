"""The command `psnode bench step`, which times a worker's step under several schemes."""

from __future__ import annotations

from typing import Any

import click

from psnode.cli import shared
from psnode.cli.debugging import debuggable
from psnode.errors import ConfigurationError


def _shape(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...] | None:
    if value is None:
        return None
    try:
        found = tuple(map(int, value.split(",")))
    except ValueError:
        found = ()
    if len(found) != 3 or min(found) < 1:
        raise ConfigurationError(f"--shape {value}: three numbers, channels, height and width, such as 3,224,224")
    return found


@click.command(name="step", short_help="Time that coding adds to a training step.")
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda[:N]", help="Device that the network runs on.")
@click.option("--network", help="A network of `psnode train`.  [default: torchvision:resnet50 on cuda, LeNet on cpu]")
@click.option("--batch-size", type=click.IntRange(1), metavar="B", help="Images per batch.  [default: 64 on cuda, 32 on cpu]")
@click.option(
    "--shape", callback=_shape, metavar="C,H,W", help="Shape of an image.  [default: 3,224,224 on cuda, 3,32,32 on cpu]"
)
@click.option("--classes", type=click.IntRange(2), help="Number of classes.  [default: 1000 on cuda, 10 on cpu]")
@click.option(
    "--scheme", "schemes", multiple=True, metavar="'NAME [FLAG VALUE]...'",
    help="A scheme, and flags of `psnode train`; repeatable; `none` is always measured.  [default: dense, fp16, qsgd, topk of "
    ".5 %, atomo]",
)  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Rounds in which all schemes take turns.")
@click.option("--steps", type=click.IntRange(1), default=10, show_default=True, help="Steps per scheme and round.")
@click.option("--warmup", type=click.IntRange(1), default=3, show_default=True, help="Steps per scheme before the first round.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Compute threads of torch, same as `psnode train`."
)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="Same as `psnode train`.")
@shared.json_file
@debuggable
def bench_step(**options: Any) -> int:
    """Time a worker's step under several schemes, and the forward and backward passes without them. Also count the bytes sent,
    and those copied between device and host.

    Everything runs in one process, without communication. The schemes take turns. A step includes coding the gradients
    with their feedback, and decoding and adding the changes of the weights.
    """
    from psnode.bench.step import main as measure

    return measure(**options)
