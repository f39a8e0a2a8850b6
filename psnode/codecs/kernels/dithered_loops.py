"""Coding of whole arrays by the codec dithered, bucket by bucket, as symbols of one byte for an entropy stage.

The symbols of full blocks come first, in four runs, one for each class of the dither, because each class has its own
distribution. The symbols of an incomplete last block follow, in the order of its coordinates.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from psnode.codecs.arrays import Bytes, Floats, Words32
from psnode.codecs.kernels.cache_hints import AHEAD, copy_to, fetch_row, fetch_row_to_write, wide
from psnode.codecs.kernels.dithered import QUARTER, block_dither, by_class, from_codes, quantise, reconstruct, to_codes
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.norms import l2_norm
from psnode.codecs.kernels.planes import BLOCK
from psnode.codecs.rng import HALF, Draws

Int16s = npt.NDArray[np.int16]

NOT_FINITE = -1
NOT_VALID = -1
ESCAPE = 255  # the symbol of an integer whose code does not fit into a byte
_TINIEST = float(np.finfo(np.float32).smallest_subnormal)


class Lattice(NamedTuple):
    """The points to which coordinates are rounded.

    `step` is the distance between points in units of a bucket's root mean square. `bucket` is the number of coordinates of a
    bucket, a multiple of 512.
    """

    step: float
    bucket: int


@kernel
def bucket_rms(v: Floats, scratch: Floats) -> np.float32:
    """Return the root mean square of `v`, rounded up, or a negative number if a value is not finite."""
    norm = l2_norm(v, scratch)
    if norm <= 0:
        return np.float32(norm)
    rms = max(norm / np.sqrt(np.float64(v.size)), _TINIEST)
    result = np.float32(rms)
    return result if np.float64(result) >= rms else np.nextafter(result, np.float32(np.inf))


@inlined
def _load(x: Floats, v: Floats) -> None:
    """Copy `x` to the start of the block `v`, and fill the rest of the block with zeros."""
    if x.size == BLOCK:
        for i in range(BLOCK):
            v[i] = x[i]
    else:
        v[:] = 0
        copy_to(x, v)


@inlined
def _scatter(codes: Words32, orders: Words32, block: int, run: int, symbols: Bytes) -> None:
    """Write the symbols of a full block to the four runs, each of length `run`."""
    by_class(codes, orders)
    for c in range(4):
        at = c * run + block * QUARTER
        part = symbols[at : at + QUARTER]
        for j in range(QUARTER):
            part[j] = np.uint8(codes[c * QUARTER + j])


@inlined
def _gather(symbols: Bytes, orders: Words32, block: int, run: int, codes: Words32) -> None:
    """Read the codes of a full block from the four runs. This is the inverse of _scatter."""
    for c in range(4):
        at = c * run + block * QUARTER
        part = symbols[at : at + QUARTER]
        for j in range(QUARTER):
            codes[c * QUARTER + j] = np.uint32(part[j])
    by_class(codes, orders)


@kernel
def encode_symbols(x: Floats, lattice: Lattice, draws: Draws, rms: Floats, symbols: Bytes, escapes: Int16s) -> tuple[int, int]:
    """Write a symbol for every coordinate. Return the number of escaped integers (or NOT_FINITE) and the largest symbol."""
    wide()
    words, orders, k = np.empty(HALF, np.uint32), np.empty(QUARTER, np.uint32), np.empty(BLOCK, np.uint32)
    q, codes = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.uint32)
    v, scratch = np.empty(BLOCK, np.float32), np.empty(BLOCK + 64, np.float32)
    run = x.size // BLOCK * QUARTER
    found = 0
    top = np.uint32(0)
    for start in range(0, x.size, BLOCK):
        b = start // lattice.bucket
        if start == b * lattice.bucket:
            rms[b] = bucket_rms(x[start : start + lattice.bucket], scratch)
            if rms[b] < 0:
                return NOT_FINITE, 0
        fetch_row(x, start + AHEAD)
        part = x[start : start + BLOCK]
        _load(part, v)
        block_dither(draws.key, draws.stream, start // BLOCK, words, orders, k)
        quantise(v, lattice.step * np.float64(rms[b]), k, draws.key, draws.stream, start, q)
        largest = to_codes(q, k, codes)
        if largest >= ESCAPE:
            for i in range(BLOCK):
                if codes[i] >= ESCAPE:
                    codes[i] = ESCAPE
                    escapes[found] = q[i]
                    found += 1
        top = max(top, min(largest, np.uint32(ESCAPE)))
        if part.size == BLOCK:
            _scatter(codes, orders, start // BLOCK, run, symbols)
        else:
            for i in range(part.size):
                symbols[start + i] = np.uint8(codes[i])
    return found, int(np.int64(top))


@kernel
def decode_symbols(lattice: Lattice, draws: Draws, rms: Floats, symbols: Bytes, escapes: Int16s, out: Floats) -> int:
    """Overwrite `out` with the decoded values. Return the number of escaped integers used, or NOT_VALID if there are too few."""
    wide()
    words, orders, k = np.empty(HALF, np.uint32), np.empty(QUARTER, np.uint32), np.empty(BLOCK, np.uint32)
    q, codes, y = np.empty(BLOCK, np.int32), np.empty(BLOCK, np.uint32), np.empty(BLOCK, np.float32)
    run = out.size // BLOCK * QUARTER
    used = 0
    for start in range(0, out.size, BLOCK):
        fetch_row_to_write(out, start + AHEAD)
        part = out[start : start + BLOCK]
        block_dither(draws.key, draws.stream, start // BLOCK, words, orders, k)
        if part.size == BLOCK:
            _gather(symbols, orders, start // BLOCK, run, codes)
        else:
            codes[:] = 0
            for i in range(part.size):
                codes[i] = np.uint32(symbols[start + i])
        from_codes(codes, k, q)
        top = np.uint32(0)
        for i in range(BLOCK):
            top = max(top, codes[i])
        if top == ESCAPE:
            for i in range(BLOCK):
                if codes[i] == ESCAPE:
                    if used == escapes.size:
                        return NOT_VALID
                    q[i] = escapes[used]
                    used += 1
        reconstruct(q, lattice.step * np.float64(rms[start // lattice.bucket]), k, y)
        for i in range(part.size):
            part[i] = y[i]
    return used
