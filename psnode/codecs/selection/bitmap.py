"""Indices as a bitmap, entropy-coded: within 1 % of the least there is at densities that are too high for gaps.

The bits of the bitmap are coded in bytes (bit j of byte i is index 8 i + j), whose probability follows from the number k of
ones alone: p^ones (1 - p)^zeros, p = k / d. So no table is sent. The coder is rANS with four states in turn (byte i goes to
state i mod 4), of 32 bits, renormalised by 16 bits, with frequencies of 15 bits.

    uint32 of each state, then the uint16 words in the order in which they are read

Source: Duda, "Asymmetric numeral systems: entropy coding combining speed of Huffman coding with compression rate of arithmetic
coding", arXiv:1311.2540.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Words, Words16, Words32
from psnode.codecs.kernels.bitmasks import lowest_one
from psnode.codecs.kernels.jit import kernel
from psnode.errors import PayloadError

STATES = 4
_BITS = 15
_LOW = 1 << 16  # states lie in 2^16 .. 2^32 - 1
_POPULATION = np.array([bin(byte).count("1") for byte in range(256)])


def edges(count: int, size: int) -> Words:
    """The 257 edges, 0 to 2^15, of the stretches of 256 bytes for `count` ones in `size` bits, 0 < count < size.

    Products and sums in a fixed order: equal on every machine. A stretch is at least 1 long.
    """
    p = count / size
    weights = [1.0]
    for _ in range(8):
        weights = [*(weight * (1 - p) for weight in weights), weights[-1] * p]
    total = np.cumsum(np.array(weights)[_POPULATION])
    ends = np.rint(total * ((1 << _BITS) / total[-1])).astype(np.int64)
    lengths = np.maximum(np.diff(ends, prepend=0), 1)
    lengths[np.argmax(lengths)] -= lengths.sum() - (1 << _BITS)
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint64)


@kernel
def _encode(bitmap: Bytes, edges: Words, states: Words, words: Words16) -> int:
    """Fill `words` from its end; how many. The last byte is coded first."""
    used = 0
    for s in range(STATES):
        states[s] = _LOW
    for i in range(bitmap.size - 1, -1, -1):
        start = edges[bitmap[i]]
        length = edges[np.int64(bitmap[i]) + 1] - start
        state = states[i & (STATES - 1)]
        if state >= length << np.uint64(32 - _BITS):
            used += 1
            words[words.size - used] = np.uint16(state & np.uint64(0xFFFF))
            state >>= np.uint64(16)
        quotient = np.uint64(np.uint32(state) // np.uint32(length))
        states[i & (STATES - 1)] = (quotient << np.uint64(_BITS)) + (state - quotient * length) + start
    return used


@kernel
def _decode(words: Words16, states: Words, edges: Words, bytes_of: Bytes, bitmap: Bytes) -> bool:
    """Inverse of _encode; whether all words were used and the states are those it started from."""
    used = 0
    for i in range(bitmap.size):
        state = states[i & (STATES - 1)]
        slot = state & np.uint64((1 << _BITS) - 1)
        byte = bytes_of[slot]
        bitmap[i] = byte
        start = edges[byte]
        state = (edges[np.int64(byte) + 1] - start) * (state >> np.uint64(_BITS)) + slot - start
        if state < _LOW:
            if used == words.size:
                return False
            state = state << np.uint64(16) | np.uint64(words[used])
            used += 1
        states[i & (STATES - 1)] = state
    for s in range(STATES):
        if states[s] != _LOW:
            return False
    return used == words.size


@kernel
def _fill(indices: Words32, bitmap: Bytes) -> None:
    for index in indices:
        bitmap[index >> np.uint32(3)] |= np.uint8(1) << np.uint8(index & np.uint32(7))


@kernel
def scan(bitmap: Words, indices: Words32) -> int:
    """The positions of the ones, ascending; how many there are. Those beyond indices.size are counted only."""
    count = 0
    for i in range(bitmap.size):
        word = bitmap[i]
        while word:
            if count < indices.size:
                indices[count] = i * 64 + lowest_one(word)
            count += 1
            word &= word - np.uint64(1)
    return count


def write(indices: Words32, size: int) -> Bytes:
    """The code of 0 < k < size ascending indices below `size`."""
    bitmap = np.zeros(-(-size // 8), np.uint8)
    _fill(indices, bitmap)
    states = np.empty(STATES, np.uint64)
    words = np.empty(bitmap.size, np.uint16)
    used = _encode(bitmap, edges(indices.size, size), states, words)
    return np.concatenate([states.astype(np.uint32).view(np.uint8), words[words.size - used :].view(np.uint8)])


def read(data: Bytes, count: int, size: int) -> Words32:
    """0 < count < size ascending indices below `size` from all of `data`. Raises PayloadError."""
    head = 4 * STATES
    if data.size < head or data.size % 2 or data.size > head + 2 * -(-size // 8):
        raise PayloadError(f"{data.size} bytes are no coded bitmap of {size} bits")
    aligned = np.empty(data.size, np.uint8)
    aligned[:] = data
    states = aligned[:head].view(np.uint32).astype(np.uint64)
    bounds = edges(count, size)
    bytes_of = np.repeat(np.arange(256, dtype=np.uint8), np.diff(bounds).astype(np.int64))
    bitmap = np.zeros(-(-size // 64), np.uint64)
    fine = states.min() >= _LOW and _decode(
        aligned[head:].view(np.uint16), states, bounds, bytes_of, bitmap.view(np.uint8)[: -(-size // 8)]
    )
    indices = np.empty(count, np.uint32)
    if not fine or scan(bitmap, indices) != count or int(indices[-1]) >= size:
        raise PayloadError(f"{data.size} bytes are no coded bitmap of {size} bits with {count} ones")
    return indices
