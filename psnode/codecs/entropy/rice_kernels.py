"""Kernels of rice, which write and read codewords of at most 32 bits through a 64-bit accumulator."""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Codes, Int64s, Words16, Words32
from psnode.codecs.kernels.jit import inlined, kernel

LONGEST_RUN = 16  # number of ones after which the rank itself follows
NOT_VALID = False
_PEEK = 12  # bits by which the table of short codewords is indexed


@kernel
def encode(codes: Codes, words: Int64s, lengths: Int64s, out: Words32) -> None:
    """Write the codewords of `codes`, one after another, to `out`, which has exactly as many words as they need."""
    held = np.uint64(0)
    count = np.uint64(0)
    p = np.uint64(0)
    for code in codes:
        held |= np.uint64(words[code]) << count
        count += np.uint64(lengths[code])
        if count >= np.uint64(32):
            out[p] = np.uint32(held & np.uint64(0xFFFFFFFF))
            p += np.uint64(1)
            held >>= np.uint64(32)
            count -= np.uint64(32)
    if count:
        out[p] = np.uint32(held)


@inlined
def _read(held: np.uint64, k: int, largest_bits: int) -> tuple[int, int]:
    """Return the rank whose codeword starts at the lowest bit of `held`, and the length of this codeword in bits."""
    quotient = 0
    while quotient < LONGEST_RUN and held & np.uint64(1):
        held >>= np.uint64(1)
        quotient += 1
    if quotient == LONGEST_RUN:
        return int(np.int64(held & np.uint64((1 << largest_bits) - 1))), LONGEST_RUN + largest_bits
    return (quotient << k) | int(np.int64((held >> np.uint64(1)) & np.uint64((1 << k) - 1))), quotient + 1 + k


@kernel
def decode(words: Words32, bits: int, symbols: Words16, k: int, largest_bits: int, codes: Codes) -> bool:
    """Overwrite `codes` with the codes of the first `bits` bits of `words`.

    Return NOT_VALID unless these bits are exactly codes.size codewords.
    """
    table = np.zeros(1 << _PEEK, np.uint32)  # length + 2^8 symbol; 0 if the codeword is longer than 12 bits or not valid
    for index in range(1 << _PEEK):
        rank, wide = _read(np.uint64(index), k, largest_bits)
        if wide <= _PEEK and rank < symbols.size:
            table[index] = np.uint32(wide) | (np.uint32(symbols[rank]) << np.uint32(8))
    held = np.uint64(0)
    count = np.uint64(0)
    p = np.uint64(0)
    left = bits
    for i in range(codes.size):
        if count < np.uint64(32) and p < np.uint64(words.size):
            held |= np.uint64(words[p]) << count
            p += np.uint64(1)
            count += np.uint64(32)
        entry = np.uint64(table[held & np.uint64((1 << _PEEK) - 1)])
        length = entry & np.uint64(0xFF)
        symbol = entry >> np.uint64(8)
        if length == 0:
            rank, wide = _read(held, k, largest_bits)
            if rank >= symbols.size:
                return NOT_VALID
            length = np.uint64(wide)
            symbol = np.uint64(symbols[rank])
        if length > count:
            return NOT_VALID
        held >>= length
        count -= length
        left -= int(np.int64(length))
        codes[i] = np.uint16(symbol)
    return left == 0 and held == 0
