"""`psnode bench fidelity`: squared error of every codec against polar's at as many bits, on N(0,1) and a recorded gradient.

Bits are those of the payload, header included; the error is ||x - decode||^2 / ||x||^2, that of unbiased codecs after the best
constant factor. Between its rates polar's error is taken in proportion to the bits, in decibels; with more bits than its
highest rate takes it stays as it is there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench import inputs
from psnode.bench.hardware import hardware
from psnode.bench.inputs import Input
from psnode.bench.quality import quality
from psnode.bench.rate_distortion import curve
from psnode.bench.saving import load, save
from psnode.codecs import get_codec
from psnode.codecs.rng import Key

KEY = Key.derive(1, "bench")
POLAR = tuple(f"polar:rate={rate}" for rate in (0.5, 1, 1.5, 2, 3, 4))
SETTINGS = (
    *POLAR,
    *(f"dithered:step={step}+ans" for step in (3.5, 2, 1.5, 1, 0.5, 0.35, 0.25)),
    *(f"qsgd:levels={levels}+ans" for levels in (1, 3, 7, 15, 31)),
    *(f"nuqsgd:levels={levels}+ans" for levels in (1, 3, 7)),
    *("natural+ans", "terngrad", "terngrad+ans", "terngrad:clip=2.5+ans"),
    *("minmax:bits=1", "minmax:bits=2", "minmax:bits=4+ans", "scaledsign", "scaledsign:bucket=512", "onebit", "tbq", "tbq+ans"),
    *(f"topk:ratio={ratio}" for ratio in (0.012, 0.025, 0.055)),
    *("topk:ratio=0.03+qsgd:levels=15+ans", "topk:ratio=0.1+qsgd:levels=15+ans", "topk:ratio=0.25+qsgd:levels=15+ans"),
    *("topk:ratio=0.03+polar:rate=3", "topk:ratio=0.1+polar:rate=3"),
    *("graddrop:ratio=0.025", "adacomp", "threshold", "randk:ratio=0.03", "entrywise:budget=0.03", "entrywise:budget=0.1"),
    *("svd:rank=3,sample=false", "svd:rank=8,sample=false", "svd:rank=16,sample=false"),
    *(f"svd:rank={rank},sample=false+qsgd:levels=127+ans" for rank in (16, 48, 96, 192)),
    *("lss:bits=1", "lss:bits=2", "lss:bits=2+ans", "lss:bits=3+ans"),
    *(f"lss:bits=8,rate={rate}+ans" for rate in (0.5, 1, 2)),
    *("sketchml", "sketchml:bins=16,rows=0+ans", "sketchml:bins=64,rows=0+ans", "topk:ratio=0.05+sketchml:bins=32,rows=0+ans"),
    *(f"{name}:ratio={ratio}" for name in ("countsketch", "countmean") for ratio in (0.016, 0.031, 0.062)),
    *("fourier:budget=0.03", "fourier:budget=0.1"),
)  # fmt: skip


class Frontier:
    """The error that one codec reaches with any number of bits, from (bits, error) of some settings, and (0, 1)."""

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        bits, errors = zip(*sorted([(0.0, 1.0), *points]), strict=True)
        self.bits, self.decibels = np.array(bits), np.minimum.accumulate(10 * np.log10(errors))

    def decibels_at(self, bits: float) -> float:
        """With so many bits."""
        return float(np.interp(bits, self.bits, self.decibels))

    def bits_at(self, decibels: float) -> float | None:
        """For this error; None if no setting comes so low."""
        if decibels < self.decibels[-1]:
            return None
        return float(np.interp(-decibels, -self.decibels, self.bits))


def run(specs: Sequence[str], size: int, gradient: Path | None) -> dict[str, Any]:
    """Measure `specs`, all of the above if there are none, and polar. One that fails has `failed`, with the reason."""
    sources = [inputs.gaussian(size), *([inputs.recorded(gradient)] if gradient else [])]
    chosen = [*POLAR, *(spec for spec in specs or SETTINGS if spec not in POLAR)]
    return {**hardware(), "sources": {source.name: _source(source, chosen) for source in sources}}


def _source(source: Input, specs: Sequence[str]) -> dict[str, Any]:
    theory = curve(source.flat)
    rows = []
    for spec in specs:
        codec = get_codec(spec)
        try:
            rows.append({"spec": spec, "unbiased": codec.unbiased, **quality(codec, source.parts(codec), KEY, theory)})
        except Exception as error:  # one codec that cannot be measured must not end the others' run
            rows.append({"spec": spec, "failed": " ".join(f"{type(error).__name__}: {error}".split())})
    polar = Frontier([(row["bits"], row["error"]) for row in rows if row["spec"] in POLAR and "failed" not in row])
    for row in rows:
        if "failed" not in row and row["shrunk"] > 0:
            row["decibels"] = 10 * math.log10(row["shrunk"])
            row["polar"] = polar.decibels_at(row["bits"])
            fewest = polar.bits_at(row["decibels"])
            row["more"] = None if fewest is None else row["bits"] - fewest
    return {"size": source.flat.size, "zeros": float(np.mean(source.flat == 0)), "rows": rows}


def show(result: Mapping[str, Any]) -> None:
    """Print a table for each input, in the order of bits."""
    for name, source in result["sources"].items():
        print(f"{name}: {source['size']:,} values, {100 * source['zeros']:.0f} % zeros")
        print(f"{'codec':44}{'bits':>8}{'error':>9}{'dB':>8}{'polar dB':>10}{'polar lower':>13}{'bits more than polar':>22}")
        for row in sorted(source["rows"], key=lambda row: row.get("bits", math.inf)):
            if "decibels" not in row:
                print(f"{row['spec']:44} {row.get('failed', 'exact')}")
                continue
            more = "polar comes not so low" if row["more"] is None else f"{row['more']:.3f}"
            print(
                f"{row['spec']:44}{row['bits']:8.3f}{row['shrunk']:9.4f}{row['decibels']:8.2f}{row['polar']:10.2f}"
                f"{row['decibels'] - row['polar']:13.2f}{more:>22}"
            )


def main(
    specs: Sequence[str], size: int, gradient: Path | None, json_file: Path | None, plot_file: Path | None,
    earlier: Path | None = None,
) -> int:  # fmt: skip
    """Measure, print, write JSON and the plot; the exit code. `earlier`: a result that takes the place of measuring."""
    result = load(earlier) if earlier else run(specs, size, gradient)
    show(result)
    save(result, json_file)
    if plot_file is not None:
        from psnode.bench.fidelity_plot import draw

        draw(result, plot_file)
    return 0
