"""`python -m studies.sketchml`: bytes of a sparse gradient in psnode's codecs, compared with SketchML's own coding of its sketch.

SketchML's own coding maps the values of each sign to quantile bins, and the bins to groups. For every group it sends the gaps
between keys, each in the fewest whole bytes, and two bits per gap for the number of these bytes. It also sends two floats for
every bin, and one byte for each cell of the groups' sketches. So its error is that of psnode's codec `sketchml` with the same
bins, groups, rows and columns.

Source: Jiang, Fu, Yang, Cui, "SketchML: Accelerating distributed machine learning with data sketches", SIGMOD 2018.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from psnode.bench import inputs
from psnode.codecs import get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.rng import Key
from psnode.codecs.selection import indices
from psnode.config.declaration import option
from studies.harness import Column, Found, Result, Study, main

KEY = Key.derive(1, "bench")
SPECS = ("sketchml", "sketchml:rows=0+ans", *(f"sketchml:bins={bins},rows=0+ans" for bins in (64, 40, 32)))
_BINS, _GROUPS, _ROWS, _COLUMNS = 256, 8, 2, 0.3  # the defaults of `sketchml`


def original_nbytes(x: Floats) -> int:
    """Return the bytes of SketchML's own coding of the 1-D array `x`, without a header."""
    places = np.flatnonzero(x)
    values = x[places]
    total = 8 * _BINS
    for own in (values < 0, values > 0):
        count = int(own.sum())
        labels = np.empty(count, np.int64)
        labels[np.argsort(np.abs(values[own]), kind="stable")] = np.arange(count) * _GROUPS // max(count, 1)
        total += sum(_group_nbytes(places[own][labels == label]) for label in range(_GROUPS))
    return total


def _group_nbytes(keys: npt.NDArray[np.int64]) -> int:
    """Return the bytes of a group: its gaps, their lengths, and the cells of its sketch."""
    gaps = np.diff(keys, prepend=0)
    lengths = 1 + (gaps >= 1 << 8) + (gaps >= 1 << 16) + (gaps >= 1 << 24)
    return int(lengths.sum()) - (-keys.size // 4) + _ROWS * int(_COLUMNS * keys.size)


def key_bits(x: Floats) -> tuple[float, float]:
    """Return the bits per key in psnode's coding of the nonzero places, and the least possible number.

    The least number is log2 binomial(d, n) / n, where n of d coordinates are not zero.
    """
    places, d = np.flatnonzero(x).astype(np.uint32), x.size
    n = places.size
    used = indices.write(places, d, np.empty(indices.max_nbytes(n, d), np.uint8))
    least = (math.lgamma(d + 1) - math.lgamma(n + 1) - math.lgamma(d - n + 1)) / math.log(2)
    return 8 * used / n, least / n


def sparse(size: int, density: float) -> Floats:
    """Return an array with values of Student-t(3) at random places, and zeros elsewhere. `density`: the share of these places."""
    x = inputs.student(size).flat.copy()
    x[np.random.default_rng(2).random(size) >= density] = 0
    return x


def largest(x: Floats, density: float) -> Floats:
    """Return a copy of `x` in which only the share `density` of largest magnitudes is kept; all other values are zero."""
    kept = np.zeros_like(x)
    chosen = np.argpartition(np.abs(x), -round(density * x.size))[-round(density * x.size) :]
    kept[chosen] = x[chosen]
    return kept


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.sketchml`."""

    codec: tuple[str, ...] = option(SPECS, "Measure this one; repeat.", repeated=True, metavar="SPEC")
    size: int = option(2**20, "Coordinates, Student-t(3) at random places.", minimum=1024)
    density: float = option(0.01, "The share that is not 0.", minimum=0.0001, maximum=1)
    gradient: Path | None = option(None, "A file of psnode bench record: its largest values too.", metavar="FILE")


def measure(options: Options) -> Found:
    """Return rows for random places and, if given, for the largest values of a recorded gradient.

    The first row of each is for SketchML's own coding; a row for each codec follows.
    """
    chosen = {"random places": sparse(options.size, options.density)}
    if options.gradient is not None:
        chosen["the largest values"] = largest(inputs.recorded(options.gradient).flat, options.density)
    rows = [row for name, x in chosen.items() for row in _rows(name, x, options.codec)]
    keys = {name: [np.count_nonzero(x), x.size, *key_bits(x)] for name, x in chosen.items()}
    return Found(rows, {"keys": keys})


def _rows(name: str, x: Floats, specs: Sequence[str]) -> Iterator[dict[str, Any]]:
    theirs = original_nbytes(x)
    yield {"of": name, "spec": "the original coding", "nbytes": theirs, "saved": 1.0, "error": None}
    for spec in specs:
        codec = get_codec(spec)
        payload = codec.encode(x, KEY)
        lost = x.astype(np.float64) - codec.decode(payload)
        error = float(lost @ lost) / float(x.astype(np.float64) @ x)
        yield {"of": name, "spec": spec, "nbytes": payload.nbytes, "saved": theirs / payload.nbytes, "error": error}


def _foot(result: Result) -> str:
    return "\n".join(
        f"{name}: {count:,} of {size:,}; a key has {bits:.3f} bits, {bits / least:.4f} of those of random places."
        for name, (count, size, bits, least) in result["keys"].items()
    )


COLUMNS = (
    Column("codec", "{spec}", left=True),
    Column("bytes", "{nbytes}"),
    Column("original / it", "{saved:.2f}"),
    Column("error", lambda row: "" if row["error"] is None else f"{row['error']:.4f}"),
)
STUDY = Study(Options, measure, COLUMNS, foot=_foot, tables="of")


if __name__ == "__main__":
    sys.exit(main(STUDY))
