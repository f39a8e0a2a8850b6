"""`python -m studies.polar_stages`: time of polar's stages in nanoseconds per row of 32 values, one from each of 32 blocks.

One superblock of N(0, 1) is encoded and decoded repeatedly, stage by stage, on one core; the least time of each stage counts.
Stages are called as in psnode.codecs.polarcodes.stream. The few microseconds of Python between the calls are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np

from psnode.codecs.arrays import Floats, readonly
from psnode.codecs.kernels.root_mean_square import root_mean_square
from psnode.codecs.polarcodes import designs, symbols
from psnode.codecs.polarcodes.blocks import STREAM, draw
from psnode.codecs.polarcodes.lanes import Masks
from psnode.codecs.polarcodes.range_reader import reader
from psnode.codecs.polarcodes.range_writer import finish_writing, writer
from psnode.codecs.polarcodes.stream import room_for
from psnode.codecs.polarcodes.successive_cancellation import decode_level, encode_level
from psnode.codecs.polarcodes.symbols import CELL_BITS
from psnode.codecs.polarcodes.vectors import LANES
from psnode.config.declaration import option
from psnode.errors import ConfigurationError
from studies.harness import Column, Found, Study, main

_ENDLESS = 1 << 40  # bits


class Stages:
    """The least time of each stage of the codec, in seconds."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}

    def time(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """Return call(*arguments), and record its time under `name`."""
        start = perf_counter()
        result = call(*arguments)
        seconds = perf_counter() - start
        self.found[name] = min(seconds, self.found.get(name, seconds))
        return result


class Bench:
    """Encoding and decoding of one superblock of 32 blocks of 2^log_length values, stage by stage."""

    def __init__(self, rate: float, log_length: int) -> None:
        self.rate, self.size, rows = rate, LANES << log_length, 1 << log_length
        self.tables, self.levels = designs.tables(rate), designs.schedules(rate, log_length)
        self.x = np.random.default_rng(1).standard_normal(self.size, np.float32)
        self.key = readonly(np.array([1, 2], np.uint64))
        self.room, self.shared = room_for(log_length, 4)
        self.prior, self.count = 2 * rows, 1 << len(self.levels)
        self.post, self.priors = self.room.llrs[: 2 * self.size], self.room.llrs[2 * self.size :]

    def encode(self, stages: Stages) -> tuple[np.ndarray, list[Masks]]:
        """Encode, and return the words of the coder and the raw rows of each level."""
        out, raw = writer(np.empty(self.size // 4, np.uint16), LANES), []
        cells, _, bits, rows, sums, squares = self.room
        scale = stages.time("encode: scale", root_mean_square, self.x)
        stages.time("encode: cells", symbols.cells_of, self.x, scale, cells, LANES)
        for level, steps in enumerate(self.levels):
            stages.time(f"encode: posteriors {level}", symbols.look_up_llrs, self.tables.posterior[level], cells, self.post)
            if not steps.flat:
                args = self.tables.prior[level], cells, CELL_BITS, self.priors
                stages.time(f"encode: priors {level}", symbols.look_up_priors, *args)
            self._draw(stages, "encode", level)
            tree = steps.encode, 0, len(steps.encode), self.room.llrs, self.prior, bits, self.shared
            writing = *tree, out, rows, LANES, _ENDLESS, 4 * _ENDLESS
            stages.time(f"encode: trees and coder {level}", encode_level, *writing)
            raw.append(rows[: steps.raw].copy())
            stages.time(f"encode: symbols {level}", symbols.mark, cells, bits, CELL_BITS + level)
        fit = self.x, scale, cells, CELL_BITS, self.count, LANES, sums, squares
        stages.time("encode: fit", symbols.inner_products, *fit)
        return out.words[: finish_writing(out, LANES)], raw

    def _draw(self, stages: Stages, side: str, level: int) -> None:
        drawn = self.levels[level].drawn
        stages.time(f"{side}: random words {level}", draw, self.key, STREAM + 256 * level, 0, drawn, self.shared.noise)

    def decode(self, stages: Stages, words: np.ndarray, raw: list[Masks], out: Floats) -> None:
        """Decode `words` and `raw`, the result of `encode`, into `out`."""
        source, (cells, llrs, bits, *_) = reader(words, LANES), self.room
        stages.time("decode: no symbols", cells.fill, 0)
        for level, steps in enumerate(self.levels):
            if not steps.flat:
                args = self.tables.prior[level], cells, 0, self.post
                stages.time(f"decode: priors {level}", symbols.look_up_priors, *args)
            self._draw(stages, "decode", level)
            reading = steps.decode, 0, len(steps.decode), llrs, bits, self.shared, source, raw[level], LANES
            stages.time(f"decode: trees and coder {level}", decode_level, *reading)
            stages.time(f"decode: symbols {level}", symbols.mark, cells, bits, level)
        half = np.float32(designs.CHANNELS[self.rate].step / 2)
        stages.time("decode: values", symbols.values_of, cells, 0, self.count, half, out)


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.polar_stages`."""

    rate: float = option(1.0, "Bits.", metavar="R")
    log_length: int = option(14, "Blocks of 2^N.", minimum=6, maximum=18, metavar="N")
    repeats: int = option(20, "The fastest of this many counts.", minimum=1)


def measure(options: Options) -> Found:
    """Return a row for each stage and a row for each of encode and decode, in nanoseconds per row of values.

    For all rows together: `gbps` of encode and decode, and the squared `error`.
    """
    if options.rate not in designs.RATES:
        raise ConfigurationError(
            f"--rate must be one of {', '.join(f'{each:g}' for each in designs.RATES)}, not {options.rate:g}"
        )
    bench, stages = Bench(options.rate, options.log_length), Stages()
    out = np.empty_like(bench.x)
    for _ in range(options.repeats):
        bench.decode(stages, *bench.encode(stages), out)
    count, sides = bench.size // LANES, ("encode", "decode")
    totals = {side: sum(took for name, took in stages.found.items() if name.startswith(side)) for side in sides}
    rows = [{"stage": name, "ns": 1e9 * took / count} for name, took in {**stages.found, **totals}.items()]
    gbps = {side: 4e-9 * bench.size / took for side, took in totals.items()}
    return Found(rows, {"gbps": gbps, "error": float(np.mean((bench.x - out).astype(np.float64) ** 2))})


STUDY = Study(
    Options,
    measure,
    (Column("stage", "{stage}", left=True), Column("ns", "{ns:.2f}")),
    foot=lambda result: (
        f"Encoding {result['gbps']['encode']:.2f} GB/s, decoding {result['gbps']['decode']:.2f}; "
        f"squared error {result['error']:.4f}."
    ),
)


if __name__ == "__main__":
    sys.exit(main(STUDY))
