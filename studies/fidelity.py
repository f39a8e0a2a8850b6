"""`python -m studies.fidelity`: squared error of every codec and of polar at the same bits, on N(0,1) and a recorded gradient.

Bits are those of the payload, header included. The error is ||x - decode||^2 / ||x||^2; for unbiased codecs it is taken after
scaling by the best constant factor. Between two of polar's rates, its error in decibels is interpolated linearly in the bits.
Above its highest rate, the error at that rate is used.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench import inputs
from psnode.bench.inputs import Input
from psnode.bench.yardsticks.quality import quality
from psnode.bench.yardsticks.rate_distortion import curve
from psnode.codecs import get_codec
from psnode.codecs.rng import Key
from psnode.config.declaration import option
from studies.fidelity_plot import draw
from studies.harness import Column, Found, Result, Row, Study, codecs, main

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
    """The error of one codec as a function of the bits per value.

    It is interpolated between points (bits, error): one for each setting of the codec, and (0, 1).
    """

    def __init__(self, points: Sequence[tuple[float, float]]) -> None:
        bits, errors = zip(*sorted([(0.0, 1.0), *points]), strict=True)
        self.bits, self.decibels = np.array(bits), np.minimum.accumulate(10 * np.log10(errors))

    def decibels_at(self, bits: float) -> float:
        """Return the error in decibels at `bits` bits per value."""
        return float(np.interp(bits, self.bits, self.decibels))

    def bits_at(self, decibels: float) -> float | None:
        """Return the bits per value at which the error is `decibels`; None if no setting has such a small error."""
        if decibels < self.decibels[-1]:
            return None
        return float(np.interp(-decibels, -self.decibels, self.bits))


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.fidelity`."""

    codec: tuple[str, ...] = option((), "Measure this one and polar; repeat; default: all.", repeated=True, metavar="SPEC")
    size: int = option(2**22, "Values of N(0,1).", minimum=1024)
    gradient: Path | None = option(None, "A file of psnode bench record, measured too.", metavar="FILE")


def measure(options: Options) -> Found:
    """Return rows by ascending bits, first for N(0,1), then for the gradient.

    The row of a failed codec has the reason as `failed`.
    """
    sources = [inputs.gaussian(options.size), *([inputs.recorded(options.gradient)] if options.gradient else [])]
    chosen = [*POLAR, *(spec for spec in codecs(options.codec) or SETTINGS if spec not in POLAR)]
    rows = [{"source": source.name, **row} for source in sources for row in _rows(source, chosen)]
    about = {source.name: {"size": source.flat.size, "zeros": float(np.mean(source.flat == 0))} for source in sources}
    return Found(rows, {"sources": about})


def _rows(source: Input, specs: Sequence[str]) -> list[dict[str, Any]]:
    theory = curve(source.flat)
    rows: list[dict[str, Any]] = []
    for spec in specs:
        codec = get_codec(spec)
        try:
            rows.append({"spec": spec, "unbiased": codec.unbiased, **quality(codec, source.parts(codec), KEY, theory)})
        except Exception as error:  # a codec that cannot be measured must not end the measurement of the others
            rows.append({"spec": spec, "failed": " ".join(f"{type(error).__name__}: {error}".split())})
    polar = Frontier([(row["bits"], row["error"]) for row in rows if row["spec"] in POLAR and "failed" not in row])
    for row in rows:
        if "failed" not in row and row["shrunk"] > 0:
            row["decibels"] = 10 * math.log10(row["shrunk"])
            row["polar"] = polar.decibels_at(row["bits"])
            fewest = polar.bits_at(row["decibels"])
            row["more"] = None if fewest is None else row["bits"] - fewest
    return sorted(rows, key=lambda row: row.get("bits", math.inf))


def _head(result: Result) -> str:
    shown = [f"{name}: {each['size']:,} values, {100 * each['zeros']:.0f} % zeros" for name, each in result["sources"].items()]
    return "; ".join(shown) + "."


def _number(name: str, form: str) -> Column:
    titles = {"bits": "bits", "shrunk": "error", "decibels": "dB", "polar": "polar, dB"}
    return Column(titles[name], lambda row: format(row[name], form) if "decibels" in row else "")


def _lower(row: Row) -> str:
    return f"{row['decibels'] - row['polar']:.2f}" if "decibels" in row else row.get("failed", "exact")


def _more(row: Row) -> str:
    if "decibels" not in row:
        return ""
    return "polar comes not so low" if row["more"] is None else f"{row['more']:.3f}"


COLUMNS = (
    Column("codec", "{spec}", left=True),
    _number("bits", ".3f"),
    _number("shrunk", ".4f"),
    _number("decibels", ".2f"),
    _number("polar", ".2f"),
    Column("polar lower", _lower),
    Column("bits more than polar", _more),
)
STUDY = Study(Options, measure, COLUMNS, _head, tables="source", plot=draw)


if __name__ == "__main__":
    sys.exit(main(STUDY))
