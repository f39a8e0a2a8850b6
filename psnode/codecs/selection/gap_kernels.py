"""Kernels of psnode.codecs.selection.gaps. The array `bits` holds b, the number of low bits, for every group of 32 gaps."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Words, Words32
from psnode.codecs.kernels.bitmasks import lowest_one
from psnode.codecs.kernels.jit import kernel

GROUP = 32
_WORD = 64
TURN = 1.62  # for geometric gaps whose mean exceeds this times 2^b, b + 1 low bits are better than b


@kernel
def fit(indices: Words32, bits: Bytes) -> tuple[float, float]:
    """Set the b of every group from its mean gap. Return the approximate length of two codes in bits.

    The first code uses these b, the second one b for all groups. The bits of the parameters b themselves are not counted.
    """
    total = 0.0
    start = np.int64(0)
    for group in range(bits.size):
        first = group * GROUP
        count = min(GROUP, indices.size - first)
        stop = np.int64(indices[first + count - 1]) + 1
        span = stop - start - count
        b = 0
        while span > TURN * count * (1 << b):
            b += 1
        bits[group] = b
        total += count * b + span / (1 << b)
        start = stop
    span = start - indices.size
    b = 0
    while span > TURN * indices.size * (1 << b):
        b += 1
    return total + indices.size, indices.size * (1.0 + b) + span / (1 << b)


@kernel
def unary_bits(indices: Words32, bits: Bytes) -> int:
    """Return the length in bits of the unary stream of `indices`."""
    total = np.int64(indices.size)
    expected = np.uint32(0)
    for group in range(bits.size):
        part = indices[group * GROUP : (group + 1) * GROUP]
        b = np.uint32(bits[group])
        total += np.int64(np.uint32(part[0] - expected) >> b)
        for i in range(1, part.size):
            total += np.int64(np.uint32(part[i] - part[i - 1] - np.uint32(1)) >> b)
        expected = np.uint32(part[part.size - 1] + np.uint32(1))
    return int(total)


@kernel
def write_streams(indices: Words32, bits: Bytes, low: Words, unary: Words) -> None:
    """Write the stream of low bits to `low`, and the unary stream to `unary`, which must hold zeros."""
    word = np.uint64(0)
    used = np.uint64(0)
    at = 0
    position = np.int64(-1)
    expected = np.uint64(0)
    for group in range(bits.size):
        part = indices[group * GROUP : (group + 1) * GROUP]
        b = np.uint64(bits[group])
        mask = (np.uint64(1) << b) - np.uint64(1)
        for i in range(part.size):
            gap = np.uint64(part[i]) - expected
            expected = np.uint64(part[i]) + np.uint64(1)
            rest = gap & mask
            word |= rest << used
            used += b
            if used >= np.uint64(_WORD):
                low[at] = word
                at += 1
                used -= np.uint64(_WORD)
                word = rest >> (b - used)
            position += np.int64(gap >> b) + 1
            unary[position >> 6] |= np.uint64(1) << np.uint64(position & 63)
    if used:
        low[at] = word


@kernel
def read_streams(low: Words, unary: Words, bits: Bytes, size: int, indices: Words32) -> tuple[int, int]:
    """Fill `indices` from the two streams. Return the lengths in bits of the unary stream and of the stream of low bits.

    The first length is -1 if the unary stream ends too early, if an index is not below `size`, or if bits after the last index
    are set in the same word. `low` is one word longer than the stream of low bits.
    """
    at = 0
    word = unary[0]
    before = np.int64(-1)
    expected = np.int64(0)
    bit = np.int64(0)
    for group in range(bits.size):
        part = indices[group * GROUP : (group + 1) * GROUP]
        b = np.int64(bits[group])
        mask = np.uint64((1 << b) - 1)
        for i in range(part.size):
            while word == 0:
                at += 1
                if at == unary.size:
                    return -1, int(bit)
                word = unary[at]
            position = np.int64(at * _WORD + lowest_one(word))
            word &= word - np.uint64(1)
            shift = np.uint64(bit & 63)
            pair = (low[bit >> 6] >> shift) | ((low[(bit >> 6) + 1] << np.uint64(1)) << (np.uint64(63) - shift))
            index = expected + ((position - before - 1) << b) + np.int64(pair & mask)
            if index >= size:
                return -1, int(bit)
            part[i] = index
            expected = index + 1
            before = position
            bit += b
    return (int(before) + 1 if word == 0 else -1), int(bit)
