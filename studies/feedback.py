"""`python -m studies.feedback`: time of a step of error feedback by codec, measured as the call that a worker's sender makes.

The gradient of a segment has one part for each tensor of the segment. A step adds the parts to the residual, codes the sum with
the contractive form of the codec, and stores the new residual (`SegmentCoder.push`). Steps are timed twice: on arrays that stay
in the cache, and on copies that are taken in turn and together exceed the cache. The same run times a copy and a read of the
same amount of memory.

The codecs take turns in each repetition. The time of a codec is the processor time of its fastest repetition, since other
programs can only slow a codec down.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from psnode.bench.codecs import KEY, tensors
from psnode.bench.hardware import last_level_cache
from psnode.bench.inputs import gaussian
from psnode.bench.yardsticks.bandwidth import read_once
from psnode.bench.yardsticks.rotation import APART, Rotation, beyond_cache
from psnode.bench.yardsticks.timing import best_in_turn
from psnode.codecs import get_codec
from psnode.codecs.arrays import Floats, Parts
from psnode.config.declaration import option
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import Context, get_feedback
from psnode.plans.coding import SegmentCoding
from psnode.plans.groups import Segment
from studies.harness import Column, Found, Result, Row, Study, codecs, main

CODECS = ("sign", "scaledsign:bucket=65536", "onebit", "tbq", "qsgd", "terngrad", "minmax", "natural", "topk")
COPY, READ = "copy", "read"


class _Laid(NamedTuple):
    """A segment's gradient, in parts and as a whole, in the form that a sender reads."""

    pieces: Parts
    whole: Floats

    def parts(self, start: int, stop: int) -> Parts:
        return self.pieces

    def flat(self, start: int, stop: int) -> Floats:
        return self.whole


class _Steps:
    """Steps of one codec. They take copies of a gradient in turn; each copy has its own residual."""

    def __init__(self, spec: str, gradients: Rotation, size: int) -> None:
        codec = get_codec(spec)
        self._gradients = gradients
        self._residuals = Rotation(np.zeros(size, np.float32), gradients.nbytes, APART)
        shape = _matrix(size) if codec.shaped else (size,)
        self._coder = SegmentCoder(
            SegmentCoding.of(Segment(0, spec, 0, shape), get_feedback("ef")), memory=lambda name: self._residuals.take()
        )
        self._codec = codec
        self._out = np.zeros(self._coder.max_nbytes, np.uint8)
        self._context = Context()

    @property
    def residual(self) -> Floats:
        """The residual of the last step."""
        return self._coder.state["residual"]

    def take(self) -> None:
        """Take a step."""
        coder, whole = self._coder, self._gradients.take()[: self._coder.segment.size]
        coder.state["residual"] = self._residuals.take()[: whole.size]
        laid = _Laid(tensors(whole, self._codec), whole)
        coder.push(laid, coder.codec(0), KEY, self._out, self._context)


def _matrix(size: int) -> tuple[int, int]:
    rows = max(1, int(size**0.5))
    return rows, size // rows


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.feedback`."""

    codec: tuple[str, ...] = option(CODECS, "Measure this one; repeat.", repeated=True, metavar="SPEC")
    cached: int = option(2**18, "Values of the arrays in the cache.", minimum=1024)
    size: int = option(2**24, "Values of those out of it.", minimum=1024)
    repeats: int = option(9, "The best of this many, in turn.", minimum=1)
    seconds: float = option(0.05, "Of each figure in a repetition.", minimum=0)
    copies: int | None = option(None, "MiB of copies that are gone round; default: 4 last-level caches.", minimum=0)


def measure(options: Options) -> Found:
    """Return a row per codec, with the figures `cached` for arrays in the cache and `memory` for arrays outside it.

    Each of the two has `ns` per coordinate and step, and `copy` and `read`, the rate of the step relative to a copy and to a
    read. If the codec fails, it has only the reason, `failed`.
    """
    specs, limits = codecs(options.codec), (options.repeats, options.seconds)
    copies = beyond_cache(last_level_cache()) if options.copies is None else options.copies << 20
    cached, memory = _place(specs, options.cached, *limits, 0), _place(specs, options.size, *limits, copies)
    pairs = zip(specs, cached.pop("rows"), memory.pop("rows"), strict=True)
    rows = [{"spec": spec, "cached": inside, "memory": outside} for spec, inside, outside in pairs]
    return Found(rows, {"copied": copies, "places": {"cached": cached, "memory": memory}})


def _place(specs: Sequence[str], size: int, repeats: int, seconds: float, copies: int) -> dict[str, Any]:
    values = gaussian(size).flat
    gradients, targets = Rotation(values, copies), Rotation(values, copies, APART)
    actions: dict[str, Callable[[], object]] = {
        COPY: lambda: np.copyto(targets.take(), gradients.take()),
        READ: lambda: read_once(gradients.take()),
    }
    failed: dict[str, str] = {}
    for spec in specs:
        try:
            steps = _Steps(spec, gradients, size)
            steps.take()  # compile the kernels
        except Exception as error:  # a codec that cannot be measured must not end the measurement of the others
            failed[spec] = " ".join(f"{type(error).__name__}: {error}".split())
        else:
            actions[spec] = steps.take
    best = {name: took / size for name, took in best_in_turn(actions, repeats, seconds).items()}
    rows = [_row(best, spec) if spec in best else {"failed": failed[spec]} for spec in specs]
    return {"size": size, **{f"{name}_gbps": 4 / best[name] for name in (COPY, READ)}, "rows": rows}


def _row(best: dict[str, float], spec: str) -> dict[str, float]:
    return {"ns": best[spec], **{name: best[name] / best[spec] for name in (COPY, READ)}}


def _columns(result: Result) -> list[Column]:
    """Return the columns: the codec, and three columns each for arrays in the cache and outside it."""

    def cell(place: str, name: str, digits: int) -> Callable[[Row], str]:
        return lambda row: f"{row[place][name]:.{digits}f}" if name in row[place] else "failed" if name == "ns" else ""

    columns = [Column("codec", "{spec}", left=True)]
    for place, about in result["places"].items():
        columns.append(Column(f"{about['size']:,} values, ns", cell(place, "ns", 3)))
        columns += [Column("of a copy", cell(place, COPY, 2)), Column("of r", cell(place, READ, 2))]
    return columns


def _head(result: Result) -> str:
    rates = "; ".join(
        f"{place['size']:,} values: copy {place['copy_gbps']:.1f} GB/s of float32, read (r) {place['read_gbps']:.1f}"
        for place in result["places"].values()
    )
    return f"{rates}; the best of {result['repeats']}."


def _foot(result: Result) -> str:
    return "\n".join(
        f"failed: {row['spec']}: {row[place]['failed']}"
        for place in result["places"]
        for row in result["rows"]
        if "failed" in row[place]
    )


STUDY = Study(Options, measure, _columns, _head, _foot)


if __name__ == "__main__":
    sys.exit(main(STUDY))
