"""Entropy-coded bitmap of indices: within 1 % of the optimum at densities that are too high for gaps.

The bitmap is coded byte by byte (bit j of byte i is index 8 i + j). Let k be the number of ones in all d bits, and p = k / d. A
byte has the probability p^ones (1 - p)^zeros, which follows from k. Therefore no table is sent. The coder is rANS with four
interleaved states of 32 bits (byte i goes to state i mod 4), renormalised by 16 bits, with frequencies of 15 bits.

    uint32 for each state, then the uint16 words in the order in which they are read

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
    """Return the 257 cumulative frequencies, 0 to 2^15, of the 256 byte values for `count` ones in `size` bits.

    `count` must be above 0 and below `size`. Every frequency is at least 1. Products and sums are computed in a fixed order, so
    that the result is equal on every machine.
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
    """Encode the bytes from last to first, and fill `words` from its end. Return the number of words."""
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
    """Decode the words that _encode wrote.

    Return True if all words were used and each state ends as it was when _encode began.
    """
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
    """Write the ascending positions of the ones to `indices`, as far as they fit, and return the number of all ones."""
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
    """Return the code of ascending indices below `size`. There must be at least one and fewer than `size` indices."""
    bitmap = np.zeros(-(-size // 8), np.uint8)
    _fill(indices, bitmap)
    states = np.empty(STATES, np.uint64)
    words = np.empty(bitmap.size, np.uint16)
    used = _encode(bitmap, edges(indices.size, size), states, words)
    return np.concatenate([states.astype(np.uint32).view(np.uint8), words[words.size - used :].view(np.uint8)])


def read(data: Bytes, count: int, size: int) -> Words32:
    """Return the `count` ascending indices below `size` that `data` encodes; 0 < count < size. Raises PayloadError."""
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
