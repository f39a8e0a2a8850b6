"""Ascending indices as the gaps between them in a Golomb-Rice code: within 1 % of the least there is at low densities.

A gap g >= 0 (coordinates skipped) is sent as its b low bits and, in unary, g >> b. The low bits of all gaps come first,
then the unary parts: g >> b zeros and a one. Both streams are filled from the lowest bit of every byte up and end with zeros.

For k of d coordinates, chosen at random, b near log2(ln 2 d / k) costs about k (log2(d / k) + 1.5) bits; whatever they are, no
more than k (1 + b) + (d - k) / 2^b.

Source: Golomb, "Run-length encodings", IEEE Trans. Inf. Theory 12, 1966; Rice and Plaunt, "Adaptive variable-length coding
for efficient compression of spacecraft television data", IEEE Trans. Commun. 19, 1971.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.base import Bytes, Words
from psnode.codecs.bitmasks import Words32, lowest_one
from psnode.codecs.jit import kernel
from psnode.errors import PayloadError

MAX_LOW_BITS = 28
_WORD = 64


def widest(count: int, size: int) -> int:
    """The b that bounds the length for any `count` >= 1 of `size` indices: 2^b is at most the mean gap, 2^(b+1) is above."""
    return max(0, ((size - count) // count).bit_length() - 1)


def max_nbytes(count: int, size: int) -> int:
    """The most bytes that `count` or fewer of `size` indices take, count <= size / 2."""
    if not count:
        return 0
    b = widest(count, size)
    return _bytes(count * (1 + b) - (count - size >> b)) + 2  # streams end with bytes of their own; fewer may take a bit more


def _bytes(bits: int) -> int:
    return -(-bits // 8)


@kernel
def _unary_bits(indices: Words32, low_bits: int) -> int:
    """Length of the unary stream."""
    total = np.int64(indices.size) + (np.int64(indices[0]) >> low_bits)
    for i in range(1, indices.size):
        total += np.int64(np.uint32(indices[i] - indices[i - 1] - np.uint32(1)) >> np.uint32(low_bits))
    return int(total)


@kernel
def _write(indices: Words32, low_bits: int, low: Words, unary: Words) -> None:
    """Fill the two streams. `unary` must be zero."""
    mask = np.uint64((1 << low_bits) - 1)
    word = np.uint64(0)
    used = np.uint64(0)
    at = 0
    position = np.int64(-1)
    expected = np.uint64(0)
    for i in range(indices.size):
        gap = np.uint64(indices[i]) - expected
        expected = np.uint64(indices[i]) + np.uint64(1)
        part = gap & mask
        word |= part << used
        used += np.uint64(low_bits)
        if used >= np.uint64(_WORD):
            low[at] = word
            at += 1
            used -= np.uint64(_WORD)
            word = part >> (np.uint64(low_bits) - used)
        position += np.int64(gap >> np.uint64(low_bits)) + 1
        unary[position >> 6] |= np.uint64(1) << np.uint64(position & 63)
    if used:
        low[at] = word


@kernel
def _read(low: Words, unary: Words, low_bits: int, size: int, indices: Words32) -> int:
    """Fill `indices`; the length of the unary stream in bits, or -1 if it ends too early or an index is not below `size`.

    `low` is one word longer than its stream.
    """
    mask = np.uint64((1 << low_bits) - 1)
    at = 0
    word = unary[0]
    before = -1
    expected = np.int64(0)
    for i in range(indices.size):
        while word == 0:
            at += 1
            if at == unary.size:
                return -1
            word = unary[at]
        position = at * _WORD + lowest_one(word)
        word &= word - np.uint64(1)
        bit = i * low_bits
        shift = np.uint64(bit & 63)
        pair = (low[bit >> 6] >> shift) | ((low[(bit >> 6) + 1] << np.uint64(1)) << (np.uint64(63) - shift))
        index = expected + ((position - before - 1) << low_bits) + np.int64(pair & mask)
        if index >= size:
            return -1
        indices[i] = index
        expected = index + 1
        before = position
    if word:
        return -1
    return before + 1


def choose(indices: Words32, size: int) -> tuple[int, int]:
    """(b, bytes) of the shortest code of at least one ascending index below `size`."""
    count = indices.size
    wide = widest(count, size)
    lengths = [(_bytes(count * b) + _bytes(_unary_bits(indices, b)), b) for b in range(max(0, wide - 1), wide + 2)]
    nbytes, b = min(lengths)
    return b, nbytes


def write(indices: Words32, b: int, out: Bytes) -> None:
    """Code `indices` with the b and exactly into the bytes that `choose` found."""
    split = _bytes(indices.size * b)
    low = np.empty(split // 8 + 1, np.uint64)
    unary = np.zeros((out.size - split) // 8 + 1, np.uint64)
    _write(indices, b, low, unary)
    out[:split] = low.view(np.uint8)[:split]
    out[split:] = unary.view(np.uint8)[: out.size - split]


def read(data: Bytes, b: int, count: int, size: int) -> Words32:
    """`count` >= 1 ascending indices below `size` from all of `data`. Raises PayloadError."""
    split = _bytes(count * b)
    if not 0 <= b <= MAX_LOW_BITS or data.size < split + _bytes(count):
        raise PayloadError(f"{data.size} bytes are too few for {count} indices of {b} bits and more")
    low = _words(data[:split], split // 8 + 2)
    unary = _words(data[split:], (data.size - split) // 8 + 1)
    indices = np.empty(count, np.uint32)
    used = _read(low, unary, b, size, indices)
    unused = int(low.view(np.uint8)[split - 1]) >> (count * b % 8 or 8) if split else 0
    if used < 0 or _bytes(used) != data.size - split or unused:
        raise PayloadError(f"{data.size} bytes do not hold {count} ascending indices below {size}, and nothing else")
    return indices


def _words(data: Bytes, count: int) -> Words:
    words = np.zeros(count, np.uint64)
    words.view(np.uint8)[: data.size] = data
    return words
