"""`python -m studies.polar_design`: make the designs of the polar codec by simulation. Equal seeds give equal designs.

Values are drawn from the test channel together with their bits, and a genie reveals these bits to successive cancellation. Let
H and H' be the entropies of bit i of a level under its prior and under its posterior, averaged over many blocks. The bit is
frozen if H - H' < tau H and H > .05, because choosing it would gain little. If N <= 2^14, or if there are four levels, a level
with less than 1 % of frozen bits gets no frozen bits. This saves the trees of the level; besides, a wrongly drawn bit in such a
level would cost much. A bit is flat if H > .995. The rate is the sum of H over all bits that are not frozen, divided by N. tau
is chosen between .05 and .9 so that the rate comes nearest to the nominal rate. Entropies are summed in integers, so that every
machine makes the same designs.

Source: Korada, Urbanke, "Polar codes are optimal for lossy source coding", IEEE Trans. IT 2010.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from psnode.codecs.arrays import Float64s, Int64s
from psnode.codecs.kernels.jit import kernel
from psnode.codecs.polarcodes import designs
from psnode.codecs.polarcodes import rate_channel as channels
from psnode.codecs.polarcodes.designs import Masks2
from psnode.codecs.polarcodes.lanes import UNIT, Llrs, Masks, f_row, g_row
from psnode.codecs.polarcodes.rate_channel import Channel
from psnode.codecs.polarcodes.symbols import CELL_BITS, cells_of, look_up_llrs, look_up_priors, mark
from psnode.codecs.polarcodes.vectors import LANES
from psnode.config.declaration import ABSENT, option
from psnode.errors import ConfigurationError
from studies.harness import Column, Found, Study, main

FLAT = 0.995
SURE = 0.05
FEW = 0.01
FAST = 1 << 14
MANY = 4
LEAST_TAU, MOST_TAU = 0.05, 0.9
VALUES, MOST_BLOCKS = 1 << 25, 8192  # simulated values, and the most blocks, if no number of blocks is given
_FINE = 4096  # entries of the entropy table, whose LLRs have steps of 2 units
_PRECISION = 20  # binary digits of an entropy


@kernel
def _genie(n: int, s: int, post: Llrs, prior: Llrs, bits: Masks, entropies: Int64s, sums: Int64s) -> None:
    """Add the entropies of the leaves s..s+n-1 of a tree to `sums`, whose rows are posterior and prior.

    `bits`: at first the bits of the leaves, which are known; at the end those of the root.
    """
    if n == 1:
        for j in range(LANES):
            sums[0, s] += entropies[min(abs(int(post[LANES + j])) >> 1, _FINE - 1)]
            sums[1, s] += entropies[min(abs(int(prior[LANES + j])) >> 1, _FINE - 1)]
        return
    half = n >> 1
    for i in range(half):
        f_row(post, n, i)
        f_row(prior, n, i)
    _genie(half, s, post, prior, bits, entropies, sums)
    for i in range(half):
        g_row(post, n, i, bits[s + i])
        g_row(prior, n, i, bits[s + i])
    _genie(half, s + half, post, prior, bits, entropies, sums)
    for i in range(half):
        bits[s + i] ^= bits[s + half + i]


def transform(bits: Masks) -> Masks:
    """Return the polar transform of `bits`, lane by lane. The transform is its own inverse."""
    result = bits.copy()
    half = 1
    while half < result.size:
        pairs = result.reshape(-1, 2, half)
        pairs[:, 0] ^= pairs[:, 1]
        half *= 2
    return result


def entropies(channel: Channel, log_length: int, rounds: int, seed: int) -> Float64s:
    """Return the mean entropies of every bit under its posterior and its prior, in bits; the shape is (levels, 2, N).

    Means are taken over 32 blocks per round.
    """
    size = LANES << log_length
    rng = np.random.default_rng([seed, log_length])
    llr = (2 * np.arange(_FINE) + 0.5) / UNIT
    p = 1 / (1 + np.exp(llr))
    table = np.rint(-(p * np.log2(p) + (1 - p) * np.log2(1 - p)) * 2.0**_PRECISION).astype(np.int64)
    post_tables = [channels.in_units(each).reshape(-1) for each in channels.posterior_llrs(channel)]
    prior_tables = [channels.in_units(each) for each in channels.prior_llrs(channel)]
    a = channels.points(channel)
    cumulated = np.cumsum(np.exp(-(a**2) / (2 * (1 - channel.noise))))
    sums = np.zeros((channel.levels, 2, 1 << log_length), np.int64)
    cells = np.empty(size, np.uint16)
    post, prior = np.empty(2 * size, np.int16), np.empty(2 * size, np.int16)
    for _ in range(rounds):
        k = np.searchsorted(cumulated, rng.random(size) * cumulated[-1])
        x = (a[k] + np.sqrt(channel.noise) * rng.standard_normal(size)).astype(np.float32)
        cells_of(x, 1.0, cells, LANES)
        for level in range(channel.levels):
            look_up_llrs(post_tables[level], cells, post)
            look_up_priors(prior_tables[level], cells, CELL_BITS, prior)
            rows = ((k >> level) & 1).astype(np.uint8).reshape(-1, LANES)
            truth = np.packbits(rows, axis=1, bitorder="little").view(np.uint32).reshape(-1)
            _genie(1 << log_length, 0, post, prior, transform(truth), table, sums[level])
            mark(cells, truth, CELL_BITS + level)
    return np.asarray(sums / (rounds * LANES * 2.0**_PRECISION))


def masks(found: Float64s, rate: float) -> tuple[Masks2, float, float]:
    """Return the masks of a design, its tau, and the rate that it promises. `found`: a result of `entropies`."""
    post, prior = found[:, 0], found[:, 1]
    low, high = LEAST_TAU, MOST_TAU
    for _ in range(30):
        tau = (low + high) / 2
        frozen = (prior - post < tau * prior) & (prior > SURE)
        frozen &= (frozen.mean(axis=1, keepdims=True) > FEW) | (len(prior) < MANY and prior.shape[1] > FAST)
        promised = float(prior[~frozen].sum()) / prior.shape[1]
        low, high = (tau, high) if promised > rate else (low, tau)
    return Masks2(frozen, prior > FLAT), tau, promised


@dataclass(frozen=True)
class Options:
    """Options of `python -m studies.polar_design`."""

    output: Path = option(ABSENT, "Folder for the designs, rate-R.npz.", metavar="FOLDER")
    rate: tuple[float, ...] = option(designs.RATES, "This rate in bits; repeat.", repeated=True, metavar="R")
    log_length: tuple[int, ...] = option(
        designs.LENGTHS, "Blocks of 2^N; repeat.", minimum=6, maximum=18, repeated=True, metavar="N"
    )
    blocks: int | None = option(None, "Blocks to simulate; default: 2^25 values of them, at most 8192.", minimum=32)
    seed: int = option(1, "Of the simulation.", minimum=0)


def measure(options: Options) -> Found:
    """Make designs, replace those in `output`, and return a row for each. Raises ConfigurationError for an unknown rate."""
    for rate in options.rate:
        if rate not in designs.RATES:
            raise ConfigurationError(f"--rate must be one of {', '.join(f'{each:g}' for each in designs.RATES)}, not {rate:g}")
    options.output.mkdir(parents=True, exist_ok=True)
    rows = []
    for rate in options.rate:
        path = options.output / designs.name_of(rate)
        stored = {}
        if path.exists():
            with np.load(path) as old:
                stored = {name: old[name] for name in old.files}
        for log_length in options.log_length:
            start = time.perf_counter()
            simulated = options.blocks or min(VALUES >> log_length, MOST_BLOCKS)
            found = entropies(designs.CHANNELS[rate], log_length, -(-simulated // LANES), options.seed)
            chosen, tau, promised = masks(found, rate)
            stored[f"n{log_length}"] = designs.pack(chosen)
            free = [float(share) for share in 1 - chosen.frozen.mean(axis=1)]
            about = {"rate": rate, "log_length": log_length, "promised": promised, "tau": tau, "free": free}
            rows.append({**about, "seconds": time.perf_counter() - start})
        np.savez_compressed(path, **{name: stored[name] for name in sorted(stored)})
    return Found(rows)


COLUMNS = (
    Column("rate", "{rate:g}"),
    Column("N", "2^{log_length}"),
    Column("bits", "{promised:.4f}"),
    Column("tau", "{tau:.3f}"),
    Column("free", lambda row: ", ".join(f"{share:.3f}" for share in row["free"]), left=True),
    Column("s", "{seconds:.0f}"),
)
STUDY = Study(Options, measure, COLUMNS)


if __name__ == "__main__":
    sys.exit(main(STUDY))
