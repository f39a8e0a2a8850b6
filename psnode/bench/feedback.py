"""`psnode bench feedback`: the time of a step of error feedback, by codec, through the call that a worker's sender makes.

The gradient of a segment lies in as many parts as the segment has tensors. A step adds them to the residual, codes the sum in
the form of the codec that error feedback uses, and leaves the residual (`SegmentCoder.push`). It is timed on arrays that stay
in the cache, and on copies taken in turn that do not; beside it, in the same run, a copy and a read of as much memory.

Codecs take turns, once a repetition. Time is the processor's, and the best repetition counts: other programs only ever make one
slower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from psnode.bench.bandwidth import read_once
from psnode.bench.codecs import KEY, tensors
from psnode.bench.hardware import hardware, last_level_cache
from psnode.bench.inputs import gaussian
from psnode.bench.rotation import APART, Rotation, beyond_cache
from psnode.bench.saving import save
from psnode.bench.timing import best_in_turn
from psnode.codecs import get_codec
from psnode.codecs.arrays import Floats, Parts
from psnode.exchange.segment_coder import SegmentCoder
from psnode.feedback import Context, get_feedback
from psnode.plan.groups import Segment

CODECS = ("sign", "scaledsign:bucket=65536", "onebit", "tbq", "qsgd", "terngrad", "minmax", "natural", "topk")
COPY, READ = "copy", "read"


class _Laid(NamedTuple):
    """A segment's gradient as training finds it: in parts."""

    pieces: Parts
    whole: Floats

    def parts(self, start: int, stop: int) -> Parts:
        return self.pieces

    def flat(self, start: int, stop: int) -> Floats:
        return self.whole


class _Steps:
    """Steps of one codec on the copies of a gradient, each with a residual of its own."""

    def __init__(self, spec: str, gradients: Rotation, size: int) -> None:
        codec = get_codec(spec)
        self._gradients = gradients
        self._residuals = Rotation(np.zeros(size, np.float32), gradients.nbytes, APART)
        shape = _matrix(size) if codec.shaped else (size,)
        self._coder = SegmentCoder(Segment(0, spec, 0, shape), get_feedback("ef"), memory=lambda name: self._residuals.take())
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


def run(specs: Sequence[str], sizes: Sequence[int], repeats: int, seconds: float, copies: int) -> dict[str, Any]:
    """Measure `specs`, in the cache on the first of `sizes` values and out of it on the second.

    `seconds`: the least time of a figure in a repetition; `copies`: bytes of the copies that are taken in turn out of the cache.
    A row has `ns`, a coordinate and step; `copy` and `read`, the shares of those rates; or `failed`, the reason.
    """
    return {
        **hardware(),
        "repeats": repeats,
        "copies": copies,
        "cached": _place(specs, sizes[0], repeats, seconds, 0),
        "memory": _place(specs, sizes[1], repeats, seconds, copies),
    }


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
            steps.take()  # kernels are compiled
        except Exception as error:  # one codec that cannot be measured must not end the others' run
            failed[spec] = " ".join(f"{type(error).__name__}: {error}".split())
        else:
            actions[spec] = steps.take
    best = {name: took / size for name, took in best_in_turn(actions, repeats, seconds).items()}
    rows = [{"spec": spec, **(_row(best, spec) if spec in best else {"failed": failed[spec]})} for spec in specs]
    return {"size": size, **{f"{name}_gbps": 4 / best[name] for name in (COPY, READ)}, "rows": rows}


def _row(best: dict[str, float], spec: str) -> dict[str, float]:
    return {"ns": best[spec], **{name: best[name] / best[spec] for name in (COPY, READ)}}


def markdown(result: dict[str, Any]) -> str:
    """The result as a page for docs/results."""
    places = [result[name] for name in ("cached", "memory")]
    heads = [f"{place['size']:,} values, ns | of a copy | of r" for place in places]
    lines = [f"| codec | {' | '.join(heads)} |", "|---|" + "---:|" * 6]
    for rows in zip(*(place["rows"] for place in places), strict=True):
        cells = [_cell(row) for row in rows]
        lines.append(f"| {rows[0]['spec']} | {' | '.join(cells)} |")
    rates = "; ".join(
        f"{place['size']:,} values: copy {place['copy_gbps']:.1f} GB/s of float32, read (r) {place['read_gbps']:.1f}"
        for place in places
    )
    head = f"{result['date']}, {result['cpu']}, {result['cores']} cores. {rates}; the best of {result['repeats']}."
    failed = [f"failed: {row['spec']}: {row['failed']}" for place in places for row in place["rows"] if "failed" in row]
    return "\n".join([head, "", *lines, *failed]) + "\n"


def _cell(row: dict[str, Any]) -> str:
    return "failed | | " if "failed" in row else f"{row['ns']:.3f} | {row[COPY]:.2f} | {row[READ]:.2f}"


def main(
    specs: Sequence[str], cached: int, size: int, repeats: int, seconds: float, copies: int | None, json_file: Path | None
) -> int:
    """Measure, print the table, write it as JSON; the exit code. `copies`: MiB, None: by the cache."""
    nbytes = beyond_cache(last_level_cache()) if copies is None else copies << 20
    result = run(specs or CODECS, (cached, size), repeats, seconds, nbytes)
    print(markdown(result))
    save(result, json_file)
    return 0
