"""`psnode bench codecs`: speed, bits, error and memory of every codec on one core, with limits set by memory and by theory.

For every setting and input, the result contains:

- GB/s of float32 in encode, feedback, decode and decode_add, also as shares of the read bandwidth r measured in the same run.
  "feedback" is one step of error feedback as in training: with the contractive form of the codec, and with a gradient that
  consists of the tensors of a segment;
- the payload's bits per coordinate, header included;
- the relative squared error ||x - decode||^2 / ||x||^2;
- the bits above two limits: the fewest bits with which a codec can have this error on every input, and the rate-distortion
  function R(D) of this input;
- the peak of allocated memory, as a share of the input.

In training a codec finds gradients in memory, not in a cache. So the codecs and the measurement of r rotate through copies of
the input, and through copies of the arrays written to. By default the total size of the copies is four times the last-level
cache. The result also contains r from the cache. Payload buffers are reused, as in training, where payloads come from the
network and go to the network.
"""

from __future__ import annotations

import itertools
import shutil
import sys
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psnode.bench import inputs, torch_codecs
from psnode.bench.hardware import hardware, last_level_cache
from psnode.bench.inputs import Input
from psnode.bench.saving import load, require_matplotlib, save
from psnode.bench.yardsticks.bandwidth import read_bandwidth
from psnode.bench.yardsticks.quality import quality
from psnode.bench.yardsticks.rate_distortion import RateDistortion, curve
from psnode.bench.yardsticks.rotation import APART, Rotation, beyond_cache
from psnode.bench.yardsticks.timing import rate
from psnode.codecs import Codec, Payload, available, get_codec
from psnode.codecs.arrays import Bytes, Floats, Parts
from psnode.codecs.rng import Key
from psnode.feedback import ErrorFeedback

KEY = Key.derive(1, "bench")
_TENSORS = 36_864, 64, 64
SPEEDS = ("encode", "feedback", "decode", "decode_add")
SETTINGS: dict[str, tuple[str, ...]] = {
    "dithered": ("dithered", *(f"dithered:step={step}+ans" for step in (0.25, 0.5, 1, 2, 3.5))),
    "qsgd": ("qsgd", "qsgd:levels=1+ans", "qsgd:levels=7+ans", "qsgd+ans", "qsgd+rice", "qsgd+zstd", "qsgd:levels=255"),
    "nuqsgd": ("nuqsgd", "nuqsgd+ans"),
    "natural": ("natural", "natural+ans"),
    "terngrad": ("terngrad", "terngrad+ans", "terngrad:clip=2.5"),
    "minmax": ("minmax:bits=1", "minmax:bits=2", "minmax", "minmax:bits=8"),
    "topk": (
        "topk",
        "topk:sampled=true",
        "topk:ratio=0.001",
        "topk:ratio=0.001,sampled=true",
        "topk:ratio=0.1+qsgd:levels=7+ans",
    ),
    "svd": ("svd", "svd:method=deflated", "svd:method=randomised", "svd+qsgd:levels=127+ans"),
    "lss": ("lss:bits=1", "lss", "lss:bits=3", "lss+ans", "lss:bits=4,rate=1+ans", "lss:bits=4,rate=2+ans", "lss:buckets=0.01"),
    "sketchml": (
        "sketchml",
        "sketchml:bins=16,rows=0",
        "sketchml:bins=64,rows=0",
        "sketchml:rows=0",
        "topk+sketchml:bins=32,rows=0",
    ),
    "countsketch": ("countsketch", "countsketch:ratio=0.02"),
    "polar": ("polar:rate=0.5", "polar", "polar:rate=2"),
    "fourier": ("fourier", "fourier:block=512", "fourier:block=4096"),
}


def settings(specs: Sequence[str]) -> list[str]:
    """Return `specs`; if empty, every available codec at its SETTINGS, or without parameters if SETTINGS has no entry."""
    return list(specs) or [spec for name in available() for spec in SETTINGS.get(name, (name,))]


def run(
    specs: Sequence[str],
    size: int,
    gradient: Path | None,
    seconds: float,
    copies: int,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the codecs `specs` on all inputs. Return hardware, date, and for each input its rows.

    `size`: number of values in each random input. `gradient`: a file of `psnode bench record`, used as a further input.
    `seconds`: time spent on each figure. `copies`: total bytes of the input's copies, and likewise of the arrays written to.
    `tell`: called with a line before each measurement. If the measurement of a setting fails, its row has the reason as
    `failed`.
    """
    codecs = [(spec, get_codec(spec)) for spec in settings(specs)]
    sources = [inputs.gaussian(size), inputs.student(size), *([inputs.recorded(gradient)] if gradient else [])]
    found, numbers = {}, itertools.count(1)

    def row(spec: str, codec: Codec, memory: Memory, theory: RateDistortion) -> dict[str, Any]:
        tell(f"{next(numbers)}/{len(sources) * len(codecs)}  {spec} on {memory.source.name}")
        return _row(spec, codec, memory, theory, seconds)

    for source in sources:
        theory, memory = curve(source.flat), Memory(source, copies)
        found[source.name] = {
            "size": source.flat.size,
            "zeros": float(np.mean(source.flat == 0)),
            "curve": {"bits": theory.bits.tolist(), "errors": theory.errors.tolist()},
            "copies": memory.inputs.nbytes,
            "cached": read_bandwidth(Rotation(source.flat, 0)),
            "rows": [row(spec, codec, memory, theory) for spec, codec in codecs],
        }
    return {**hardware(), "sources": found}


class Memory:
    """Copies of the input (`inputs`) and arrays to write to (`targets`). Both are used in turn.

    The addresses of an input and its target differ modulo 4096, as do those of unrelated arrays. If they were equal, a processor
    would assume that a load depends on an earlier store to the same address modulo 4096.
    """

    def __init__(self, source: Input, nbytes: int) -> None:
        self.source = source
        self.inputs, self.targets = Rotation(source.flat, nbytes), Rotation(source.flat, nbytes, APART)

    def input(self, codec: Codec) -> list[Floats]:
        """Return the next copy of the input in the shapes that `codec` takes."""
        return self.source.parts_of(self.inputs.take(), codec)

    def target(self, codec: Codec) -> list[Floats]:
        """Return the next array to write to in the shapes that `codec` takes."""
        return self.source.parts_of(self.targets.take(), codec)


def _row(spec: str, codec: Codec, memory: Memory, theory: RateDistortion, seconds: float) -> dict[str, Any]:
    parts = memory.source.parts(codec)
    row: dict[str, Any] = {"spec": spec, "size": sum(part.size for part in parts)}
    row |= {"unbiased": codec.unbiased, "lossless": codec.lossless}
    try:
        row |= quality(codec, parts, KEY, theory)
        row |= _speed(codec, memory, row["size"], seconds)
        row["allocated"] = _allocated(codec, memory, row["size"])
    except Exception as error:  # a codec that cannot be measured must not end the measurement of the others
        return row | {"failed": " ".join(f"{type(error).__name__}: {error}".split())}
    row["read"] = read_bandwidth(memory.inputs)
    for name in SPEEDS:
        row[name]["share"] = row[name]["median"] / row["read"]["median"]
    row["operators"] = torch_codecs.measure(spec, memory.inputs, seconds)
    return row


class MeasuredCalls:
    """Measured calls of a codec, with payload buffers that are kept between the calls, as in training."""

    def __init__(self, codec: Codec, memory: Memory) -> None:
        self.codec, self.memory, self.fed_back = codec, memory, codec.contractive()
        room = [self.fed_back.max_nbytes(part.shape) for part in memory.source.parts(codec)]
        self.bodies: list[Bytes] = [np.zeros(nbytes, np.uint8) for nbytes in room]
        self.payloads: list[Payload] = []

    def encode(self) -> None:
        pairs = zip(self.memory.input(self.codec), self.bodies, strict=True)
        self.payloads = [self.codec.encode(part, KEY, out=body) for part, body in pairs]

    def feedback(self) -> None:
        taken = self.memory.input(self.codec), self.bodies, self.memory.target(self.codec)
        self.payloads = []  # the encoding below overwrites their buffers
        for part, body, residual in zip(*taken, strict=True):
            ErrorFeedback().push_parts(tensors(part, self.codec), part.shape, {"residual": residual}, self.fed_back, KEY, body)

    def decode(self) -> None:
        for payload, target in zip(self.payloads, self.memory.target(self.codec), strict=True):
            self.codec.decode(payload, target)

    def decode_add(self) -> None:
        for payload, target in zip(self.payloads, self.memory.target(self.codec), strict=True):
            self.codec.decode_add(payload, target, 0.25)


def tensors(gradient: Floats, codec: Codec) -> Parts:
    """Split a segment's gradient into parts as in training: the sizes of 3x3x64x64 weights, 64 scales and 64 offsets in turn.

    Return a single part for a codec whose segments are always single tensors.
    """
    flat = gradient.reshape(-1)
    if codec.traits.one_scale or codec.shaped:
        return [(0, flat)]
    sizes, parts, start = itertools.cycle(_TENSORS), [], 0
    while start < flat.size:
        stop = start + next(sizes)
        parts.append((start, flat[start:stop]))
        start = stop
    return parts


def _speed(codec: Codec, memory: Memory, size: int, seconds: float) -> dict[str, Any]:
    actions = MeasuredCalls(codec, memory)
    memory.targets.fill(0)
    found = {"feedback": rate(actions.feedback, 4 * size, seconds)}
    return found | {name: rate(getattr(actions, name), 4 * size, seconds) for name in ("encode", "decode", "decode_add")}


def _allocated(codec: Codec, memory: Memory, size: int) -> dict[str, float]:
    """Return the peak bytes that Python and NumPy allocate in a call besides the caller's buffers, as a share of the input.

    The result has an entry for each of encode, decode and decode_add.
    """
    actions = MeasuredCalls(codec, memory)
    actions.encode()
    shares = {}
    for name in ("encode", "decode", "decode_add"):
        tracemalloc.start()
        try:
            getattr(actions, name)()
            shares[name] = tracemalloc.get_traced_memory()[1] / (4 * size)
        finally:
            tracemalloc.stop()
    return shares


def _show_progress(line: str) -> None:
    """Show `line` on standard error in place of the previous line; "" removes the line. Do nothing if this is no terminal.

    No thread redraws the line, since a thread would disturb the measurement.
    """
    if sys.stderr.isatty():
        print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end="", file=sys.stderr, flush=True)


def main(
    specs: Sequence[str], size: int, gradient: Path | None, seconds: float, copies: int | None, json_file: Path | None,
    plot_file: Path | None, earlier: Path | None = None,
) -> int:  # fmt: skip
    """Measure, print a table for each input, write JSON and the plot, and return the exit code.

    `copies`: MiB of all copies; None: derived from the size of the last-level cache. `earlier`: a saved result to show instead.
    """
    from psnode.bench.codec_tables import show

    if plot_file is not None:
        require_matplotlib()
    nbytes = beyond_cache(last_level_cache()) if copies is None else copies << 20
    try:
        result = load(earlier) if earlier else run(specs, size, gradient, seconds, nbytes, _show_progress)
    finally:
        _show_progress("")
    show(result)
    save(result, json_file)
    if plot_file is not None:
        from psnode.bench.plots import draw

        draw(result, plot_file)
    return 0
