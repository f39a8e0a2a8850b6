"""`psnode bench scales`: the cost of one scale for all tensors of a gradient, against one for each, and against buckets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench.hardware import hardware
from psnode.bench.inputs import Input, recorded
from psnode.bench.saving import save
from psnode.codecs import Codec, get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.rng import Key

CODECS = (
    "terngrad", "terngrad:clip=2.5", "scaledsign", "onebit", "minmax:bits=4", "tbq", "lss:bits=2",
    "scaledsign:bucket=512", "scaledsign:bucket=4096",
)  # fmt: skip


def error(codec: Codec, arrays: Sequence[Floats]) -> float:
    """||x - decoded||^2 / ||x||^2 over all `arrays`, each encoded by itself: a variance factor or the energy that is left."""
    lost = total = 0.0
    for index, x in enumerate(arrays):
        decoded = codec.decode(codec.encode(x, Key.derive(1, index)))
        lost += float(np.sum(np.square(x - decoded, dtype=np.float64)))
        total += float(np.sum(np.square(x, dtype=np.float64)))
    return lost / total


def measure(source: Input, specs: Sequence[str] = CODECS) -> list[dict[str, Any]]:
    """A row a codec: its error on all tensors fused into one array, and on each by itself."""
    tensors = [tensor.reshape(-1) for tensor in source.tensors]
    return [
        {"codec": spec, "fused": error(get_codec(spec), [source.flat]), "by_tensor": error(get_codec(spec), tensors)}
        for spec in specs
    ]


def main(gradient: Path, specs: Sequence[str], json_file: Path | None) -> int:
    """Measure, print a table, write it as JSON; the exit code."""
    rows = measure(recorded(gradient), specs or CODECS)
    print("| codec | fused | by tensor |\n|---|---:|---:|")
    for row in rows:
        print(f"| {row['codec']} | {row['fused']:.3g} | {row['by_tensor']:.3g} |")
    save({**hardware(), "gradient": str(gradient), "rows": rows}, json_file)
    return 0
