"""`python -m studies.scales`: error of codecs with one scale for all tensors of a gradient, one scale per tensor, or buckets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psnode.bench.inputs import recorded
from psnode.codecs import Codec, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.rng import Key
from psnode.config.declaration import ABSENT, option
from studies.harness import Column, Found, Study, codecs, main

CODECS = (
    "terngrad", "terngrad:clip=2.5", "scaledsign", "onebit", "minmax:bits=4", "tbq", "lss:bits=2",
    "scaledsign:bucket=512", "scaledsign:bucket=4096",
)  # fmt: skip


def error(codec: Codec, arrays: Sequence[Floats]) -> float:
    """Return ||x - decoded||^2 / ||x||^2 over all `arrays`, each encoded separately.

    This is the variance factor of an unbiased codec, or the share of the energy that a biased codec loses.
    """
    lost = total = 0.0
    for index, x in enumerate(arrays):
        decoded = codec.decode(codec.encode(x, Key.derive(1, index)))
        lost += float(np.sum(np.square(x - decoded, dtype=np.float64)))
        total += float(np.sum(np.square(x, dtype=np.float64)))
    return lost / total


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.scales`."""

    gradient: Path = option(ABSENT, "A file of psnode bench record.", metavar="FILE")
    codec: tuple[str, ...] = option(CODECS, "Measure this one; repeat.", repeated=True, metavar="SPEC")


def measure(options: Options) -> Found:
    """Return a row per codec, with its error on all tensors fused into one array and its error on each tensor separately."""
    source = recorded(options.gradient)
    tensors = [tensor.reshape(-1) for tensor in source.tensors]
    return Found(
        [
            {"spec": spec, "fused": error(get_codec(spec), [source.flat]), "by_tensor": error(get_codec(spec), tensors)}
            for spec in codecs(options.codec)
        ]
    )


COLUMNS = (
    Column("codec", "{spec}", left=True),
    Column("fused", "{fused:.3g}"),
    Column("by tensor", "{by_tensor:.3g}"),
)
STUDY = Study(Options, measure, COLUMNS, head=lambda result: f"{result['gradient']}.")


if __name__ == "__main__":
    sys.exit(main(STUDY))
