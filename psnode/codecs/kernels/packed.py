"""Packing of whole arrays of codes of b bits in the planes of psnode.codecs.kernels.planes.

Unpacked, a block of 512 codes consists of two rows, one of low bytes and one of high bytes.
"""

from __future__ import annotations

import numpy as np

from psnode.codecs.arrays import Bytes, Codes, readonly
from psnode.codecs.kernels.cache_hints import copy_to
from psnode.codecs.kernels.jit import inlined, kernel
from psnode.codecs.kernels.llvm.instructions import viewed
from psnode.codecs.kernels.planes import BLOCK, ROW, pack_row, pack_tail, packed_nbytes, unpack_row, unpack_tail
from psnode.errors import PayloadError


def bits_for(alphabet: int) -> int:
    """Return the number of bits that codes below `alphabet` need. It is 0 if `alphabet` is 1."""
    return (alphabet - 1).bit_length()


@inlined
def pack_block(low: Bytes, high: Bytes, count: int, bits: int, row: Bytes, out: Bytes) -> int:
    """Pack `count` codes of `bits` bits (0..16) from their two rows, and return the number of bytes.

    `row`: ROW bytes of scratch.
    """
    used = 64 * bits
    if count == BLOCK:
        words = viewed(out[:used], np.uint32)
        pack_row(viewed(low, np.uint32), min(bits, 8), words)
        if bits > 8:
            pack_row(viewed(high, np.uint32), bits - 8, words[BLOCK // 4 :])
    else:
        copy_to(low, row)
        used = pack_tail(row, count, min(bits, 8), out)
        if bits > 8:
            copy_to(high, row)
            used += pack_tail(row, count, bits - 8, out[used:])
    return used


@inlined
def unpack_block(data: Bytes, count: int, bits: int, low: Bytes, high: Bytes) -> int:
    """Unpack codes into their two rows, and return the number of bytes read. `low`, `high`: ROW bytes each.

    This is the inverse of pack_block.
    """
    used = 64 * bits
    if count == BLOCK:
        words = viewed(data[:used], np.uint32)
        unpack_row(words, min(bits, 8), viewed(low, np.uint32))
        if bits > 8:
            unpack_row(words[BLOCK // 4 :], bits - 8, viewed(high, np.uint32))
        else:
            high[:] = 0
    else:
        high[:] = 0
        used = unpack_tail(data, count, min(bits, 8), low)
        if bits > 8:
            used += unpack_tail(data[used:], count, bits - 8, high)
    return used


@kernel
def _pack(codes: Codes, bits: int, out: Bytes) -> None:
    low = np.zeros(BLOCK, np.uint8)
    high = np.zeros(BLOCK, np.uint8)
    row = np.zeros(ROW, np.uint8)
    used = 0
    for start in range(0, codes.size, BLOCK):
        part = codes[start : start + BLOCK]
        for i in range(part.size):
            low[i] = np.uint8(part[i])
        if bits > 8:
            for i in range(part.size):
                high[i] = np.uint8(np.uint16(part[i]) >> np.uint16(8))
        used += pack_block(low, high, part.size, bits, row, out[used:])


@kernel
def _unpack(data: Bytes, bits: int, codes: Codes) -> int:
    """Overwrite `codes` with the codes in `data`, and return the largest code."""
    low = np.zeros(ROW, np.uint8)
    high = np.zeros(ROW, np.uint8)
    used = 0
    top = np.uint32(0)
    for start in range(0, codes.size, BLOCK):
        part = codes[start : start + BLOCK]
        used += unpack_block(data[used:], part.size, bits, low, high)
        for i in range(part.size):
            part[i] = np.uint16(np.uint16(low[i]) | np.uint16(np.uint16(high[i]) << np.uint16(8)))
        for i in range(part.size):
            top = max(top, np.uint32(part[i]))
    return int(np.int64(top))


def pack(codes: Codes, alphabet: int, out: Bytes) -> int:
    """Write `codes`, each below `alphabet` (at most 65536), to `out`, which is aligned to 4 bytes. Return the number of bytes."""
    bits = bits_for(alphabet)
    used = packed_nbytes(codes.size, bits)
    if used:
        _pack(readonly(codes), bits, out[:used])
    return used


def unpack(data: Bytes, codes: Codes, alphabet: int, owner: str) -> None:
    """Overwrite `codes` with the codes in `data`, which is aligned to 4 bytes.

    Raise PayloadError, naming `owner`, if `data` has the wrong size, or if a code is not below `alphabet`.
    """
    bits = bits_for(alphabet)
    expected = packed_nbytes(codes.size, bits)
    if data.size != expected:
        raise PayloadError(f"{owner}: {data.size} bytes of packed codes instead of {expected}")
    if not bits:
        codes[:] = 0
    elif codes.size and _unpack(readonly(data), bits, codes) >= alphabet:
        raise PayloadError(f"{owner}: a packed code is not below {alphabet}")
