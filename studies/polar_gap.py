"""`python -m studies.polar_gap`: polar's distance to the rate-distortion function of a Gaussian source, and its speed.

For every rate and block length N, values of N(0, 1) are encoded, and another process decodes the bytes. R is the number of bits
per value in all these bytes. D is the mean squared error relative to the mean square. The gap is the ratio of D to 4^-R, an
error that no code can beat; in decibels it is 10 log10 D + 20 log10(2) R. The gap of the worst block uses its own D and the
common R. Speeds are GB/s of float32 on one core with reused buffers, for the fastest of at least five calls within at least
half a second. With --segment, arrays of the given sizes are measured instead, in this process.
"""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np

from psnode.codecs import get_codec
from psnode.codecs.arrays import Floats
from psnode.codecs.polarcodes.vectors import LANES
from psnode.codecs.rng import Key
from psnode.config.declaration import option
from studies.harness import Column, Found, Result, Study, main

KEY = Key.derive(1, "gap")
_REPEATS, _SECONDS = 5, 0.5
_DECODER = """
import sys
from pathlib import Path
from psnode.codecs import Payload
from psnode.codecs.registry import decoder_of
payload = Payload.from_bytes(Path(sys.argv[1]).read_bytes())
Path(sys.argv[2]).write_bytes(decoder_of(payload).decode(payload).tobytes())
"""


def _decoded_elsewhere(data: bytes) -> Floats:
    """Return the values that another process decodes from `data`."""
    with TemporaryDirectory() as folder:
        sent, received = Path(folder) / "payload", Path(folder) / "values"
        sent.write_bytes(data)
        subprocess.run([sys.executable, "-c", _DECODER, str(sent), str(received)], check=True)
        return np.frombuffer(received.read_bytes(), np.float32)


def _fastest(call: Callable[[], object]) -> float:
    seconds: list[float] = []
    while len(seconds) < _REPEATS or sum(seconds) < _SECONDS:
        start = perf_counter()
        call()
        seconds.append(perf_counter() - start)
    return min(seconds)


def blocks_of(rate: float, block: int, values: int) -> dict[str, Any]:
    """Return the row for `values` values in blocks of length `block`.

    Their number is rounded up to whole superblocks of 32 blocks.
    """
    codec = get_codec(f"polar:rate={rate:g},block={block},prior=gaussian")
    size = -(-values // (LANES * block)) * LANES * block
    x = np.random.default_rng(1).standard_normal(size, np.float32)
    data = codec.encode(x, KEY).to_bytes()
    decoded = _decoded_elsewhere(data)
    bits = 8 * len(data) / size
    lost = (x.astype(np.float64) - decoded).reshape(-1, block, LANES) ** 2
    power = np.mean(x.astype(np.float64) ** 2)
    shift = 20 * math.log10(2) * bits - 10 * math.log10(power)
    buffer, out = np.empty(codec.max_nbytes(x.shape), np.uint8), np.empty_like(x)
    payload = codec.encode(x, KEY, out=buffer)
    return {
        "rate": rate,
        "block": block,
        "blocks": size // block,
        "bits": bits,
        "error": float(lost.mean() / power),
        "gap": 10 * math.log10(lost.mean()) + shift,
        "worst": 10 * math.log10(lost.mean(axis=1).max()) + shift,
        "encode": x.nbytes / 1e9 / _fastest(lambda: codec.encode(x, KEY, out=buffer)),
        "decode": x.nbytes / 1e9 / _fastest(lambda: codec.decode(payload, out=out)),
    }


def segment(rate: float, size: int) -> dict[str, Any]:
    """Return the row for one array of `size` values. Its blocks are as long as the size allows, but at most 2^14."""
    codec = get_codec(f"polar:rate={rate:g},prior=gaussian")
    x = np.random.default_rng(1).standard_normal(size, np.float32)
    buffer, out = np.empty(codec.max_nbytes(x.shape), np.uint8), np.empty_like(x)
    payload = codec.encode(x, KEY, out=buffer)
    codec.decode(payload, out=out)
    lost, energy = float(np.sum((x - out).astype(np.float64) ** 2)), float(np.sum(x.astype(np.float64) ** 2))
    return {
        "rate": rate,
        "size": size,
        "bits": 8 * payload.nbytes / size,
        "error": lost / energy,
        "gap": 10 * math.log10(lost / energy) + 20 * math.log10(2) * 8 * payload.nbytes / size,
        "encode": x.nbytes / 1e9 / _fastest(lambda: codec.encode(x, KEY, out=buffer)),
        "decode": x.nbytes / 1e9 / _fastest(lambda: codec.decode(payload, out=out)),
    }


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.polar_gap`."""

    rate: tuple[float, ...] = option((1.0,), "Bits; repeat for more.", repeated=True, metavar="R")
    log_length: tuple[int, ...] = option(
        (10, 12, 14, 16, 18), "Blocks of 2^N; repeat for more.", minimum=10, maximum=18, repeated=True, metavar="N"
    )
    values: int = option(1 << 23, "How many Gaussian values.", minimum=1)
    segment: tuple[int, ...] = option((), "An array of N values; repeat.", minimum=1, repeated=True, metavar="N")


def measure(options: Options) -> Found:
    """Return a row for every rate and block length or, if --segment is given, for every rate and segment.

    Raises CodecSpecError.
    """
    if options.segment:
        return Found([segment(rate, size) for rate in options.rate for size in options.segment])
    return Found([blocks_of(rate, 1 << length, options.values) for rate in options.rate for length in options.log_length])


def _columns(result: Result) -> list[Column]:
    """Return the columns of the table, which differ between blocks and segments."""
    what = [Column("values", "{size}")] if result["segment"] else [Column("N", "{block}"), Column("blocks", "{blocks}")]
    worst = [] if result["segment"] else [Column("worst, dB", "{worst:.3f}")]
    found = [Column("bits sent", "{bits:.4f}"), Column("error", "{error:.5f}"), Column("gap, dB", "{gap:.3f}"), *worst]
    speeds = [Column("encode, GB/s", "{encode:.2f}"), Column("decode, GB/s", "{decode:.2f}")]
    return [Column("bits", "{rate:g}"), *what, *found, *speeds]


STUDY = Study(Options, measure, _columns)


if __name__ == "__main__":
    sys.exit(main(STUDY))
