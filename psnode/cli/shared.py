"""Parts that several commands share: the configuration of a training, and options of `psnode bench`."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import click

from psnode.config import Config

_FILE = click.Path(path_type=Path)


class FiniteRange(click.FloatRange):
    """A click type for finite numbers in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number that `value` states. For an invalid value it fails with click's error for the parameter."""
        found = super().convert(value, param, ctx)
        return found if math.isfinite(found) else self.fail(f"{value} is not a finite number.", param, ctx)


json_file = click.option("--json", "json_file", type=_FILE, help="Also write the result to this file.")
earlier = click.option(
    "--from", "earlier", type=_FILE, metavar="FILE", help="Show and plot this result of --json, and measure nothing."
)
output = click.option("--output", type=_FILE, required=True, help="Directory for the runs; existing runs are kept.")

gradient = click.option("--gradient", type=_FILE, metavar="FILE", help="Also measure a file written by bench record.")
copies = click.option(
    "--copies", type=click.IntRange(0), metavar="MIB", help="Copies used in rotation; default: 4 last-level caches."
)

network = click.option("--network", default="torchvision:resnet18", show_default=True, help="Same as `psnode train`.")
dataset = click.option("--dataset", default="synthetic", show_default=True, help="Same as `psnode train`.")
data_dir = click.option("--data-dir", type=_FILE, help="Same as `psnode train`.")
batch_size = click.option(
    "--batch-size", type=click.IntRange(1), default=16, show_default=True, help="Examples per worker and step."
)
lr = click.option(
    "--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Same as `psnode train`."
)
seed = click.option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    help="Seed of the first round; each later round uses the next.",
)


def configure(file: Path | None, **flags: Any) -> Config:
    """Return the configuration that flags, environment and the configuration `file` define.

    Raises ConfigurationError for settings that are known to be invalid before the job starts.
    """
    from psnode.config.load import load
    from psnode.config.resolve import resolve

    config = load({name: value for name, value in flags.items() if value not in (None, ())}, os.environ, file)
    if not config.resume:  # a resumed run keeps its recorded scheme
        resolve(config)
    return config
