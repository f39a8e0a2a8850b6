"""Statistical model of ans: the cost of a section of codes, which decides on the sections, and the probabilities in a section.

Probabilities are sent as weights, one byte per symbol. The weight byte b in 1..192 stands for the weight
(16 + (b - 1) mod 16) 2^((b - 1) div 16). All computations are in integers, so that results are equal on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, Int64s
from psnode.codecs.kernels.jit import inlined, kernel

PRECISION = 14
TOTAL = 1 << PRECISION  # the sum of the frequencies
MAX_SYMBOLS = TOTAL // 4  # with more symbols, frequencies of 1 would take too large a share of TOTAL
TOP_BYTE = 192
_TOP_WEIGHT = 31 << 11
_FRACTION = 24  # fractional bits of logarithms, so that a sum over 2^24 codes is accurate to about a bit


@inlined
def _bit_length(n: int) -> int:
    length = 0
    while n:
        n >>= 1
        length += 1
    return length


@inlined
def _log2(n: int) -> int:
    """Return log2(n) in units of 2^-24, for n >= 1. The mantissa is squared 24 times, and each square gives one bit."""
    exponent = _bit_length(n) - 1
    mantissa = np.uint64(n << (31 - exponent)) if exponent <= 31 else np.uint64(n >> (exponent - 31))
    result = exponent
    for _ in range(_FRACTION):
        mantissa = (mantissa * mantissa) >> np.uint64(31)
        carry = mantissa >> np.uint64(32)
        mantissa >>= carry
        result = 2 * result + int(np.int64(carry))
    return result


@kernel
def histogram(codes: Codes, counts: Int64s) -> None:
    """Add the number of occurrences of every code to `counts`."""
    lanes = np.zeros((4, counts.size), np.uint32)
    full = codes.size // 4 * 4
    for i in range(0, full, 4):
        lanes[0, codes[i]] += np.uint32(1)
        lanes[1, codes[i + 1]] += np.uint32(1)
        lanes[2, codes[i + 2]] += np.uint32(1)
        lanes[3, codes[i + 3]] += np.uint32(1)
    for i in range(full, codes.size):
        lanes[0, codes[i]] += np.uint32(1)
    for lane in range(4):
        for s in range(counts.size):
            counts[s] += np.int64(lanes[lane, s])


@kernel
def section_cost(counts: Int64s) -> int:
    """Return the estimated cost, in units of 2^-24 bits, of a section whose codes occur `counts` times.

    It consists of the entropy, 8 bits per symbol of the table, and another 64 bits.
    """
    total = 0
    cost = 64
    bits = 0
    for s in range(counts.size + 1):
        count = counts[s] if s < counts.size else -total
        if count:
            share = count * _log2(count if count > 0 else -count)
            bits -= share
            if s < counts.size:
                total += count
                cost += 8
    return (cost << _FRACTION) + bits


@kernel
def weight_bytes(counts: Int64s, codes: Bytes) -> None:
    """Write the weight byte of every count to `codes`, in proportion to the largest count. A count of 0 gets the byte 0."""
    largest: Any = np.int64(1)  # by a loop, because counts.max() would take half a second to compile
    for s in range(counts.size):
        largest = max(largest, counts[s])
    for s in range(counts.size):
        weight = counts[s] * _TOP_WEIGHT // largest
        exponent = max(_bit_length(weight) - 5, 0)
        mantissa = (weight + ((1 << exponent) >> 1)) >> exponent
        if mantissa == 32:
            mantissa = 16
            exponent += 1
        byte = 1 + 16 * exponent + max(mantissa - 16, 0)
        codes[s] = min(byte, TOP_BYTE) if counts[s] else 0


@kernel
def weights_of(codes: Bytes, weights: Int64s) -> None:
    """Overwrite `weights` with the weights for which the weight bytes `codes` stand. Byte 0 stands for weight 0."""
    for s in range(codes.size):
        b = np.int64(codes[s]) - 1
        weights[s] = (16 + (b & 15)) << (b >> 4) if b >= 0 else 0


@kernel
def frequencies(weights: Int64s, result: Int64s) -> None:
    """Overwrite `result` with frequencies in proportion to the positive `weights`. They are at least 1 and add up to TOTAL.

    There are at most MAX_SYMBOLS weights. Symbols whose exact share of TOTAL is below 1.5 get 1. The other symbols divide the
    rest in proportion, with cumulative sums rounded down.
    """
    total = 0
    for weight in weights:
        total += weight
    left = TOTAL
    mass = 0
    for weight in weights:
        if 2 * TOTAL * weight < 3 * total:
            left -= 1
        else:
            mass += weight
    before = 0
    cumulated = 0
    for k in range(weights.size):
        if 2 * TOTAL * weights[k] < 3 * total:
            result[k] = 1
        else:
            cumulated += weights[k]
            here = cumulated * left // mass
            result[k] = here - before
            before = here


@kernel
def coded_cost(counts: Int64s, freqs: Int64s) -> int:
    """Return the cost, in units of 2^-24 bits, of coding symbols that occur `counts` times with the frequencies `freqs`."""
    bits = 0
    for k in range(counts.size):
        bits += counts[k] * ((PRECISION << _FRACTION) - _log2(freqs[k]))
    return bits


@kernel
def pair_weights(freqs: Int64s, result: Int64s) -> None:
    """Write the weights of pairs of independent symbols to `result`: result[m a + b] = freqs[a] freqs[b], for m symbols."""
    m = freqs.size
    for a in range(m):
        for b in range(m):
            result[m * a + b] = freqs[a] * freqs[b]


@kernel
def pair_cost(counts: Int64s, freqs: Int64s) -> int:
    """Return the cost, in units of 2^-24 bits, of independent codes that occur `counts` times, coded in pairs.

    `freqs` are the frequencies of the pairs.
    """
    m = counts.size
    total = 0
    for count in counts:
        total += count
    bits = 0
    for a in range(m):
        row = 0
        for b in range(m):
            row += counts[b] * ((PRECISION << _FRACTION) - _log2(freqs[m * a + b]))
        bits += counts[a] * (row // total)
    return bits // 2
